"""Class-subsampled softmax: the normalised softmax over a batch's classes and a random share of the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import ProxyLoss, positive
from layerprobe.losses.vectors import uniform, unit
from layerprobe.values.sections import Network, Problem, Train


class SubsampledSoftmax(ProxyLoss):
    """NormSoftmax whose denominator holds the batch's classes and a random subset of the others, anew in every batch.

    Zhai & Wu 2019, section 4.3: "For each training batch, only the correct classes and a randomly sampled subset of the
    wrong classes are used". One subset for the whole batch, all equally likely and without repetition. Nothing makes up
    for the classes left out, as in the paper, whose code does not have this loss. A forward and backward pass takes
    time and memory for the sampled classes, not for all.

    Args:
        embedding_dim: D.
        num_classes: C.
        ratio: share of all C classes in a batch's denominator, its own included, in (0, 1]; rounded to a number of
            classes; 0.1 unless `classes` is given. The paper has 0.1, 0.01 and 0.001 on Stanford Online Products.
        classes: their number instead, at least 1 and at most C. A batch with more classes than that keeps them all.
        temperature: sigma, in (0, inf). Kept as `scale` = 1 / sigma.
        sparse: the gradient of the proxies is a sparse tensor of the sampled rows, which only the optimiser `sgd`
            (training.optimizers.RowSGD) reads. False: a gradient of all C rows, for the other optimisers.
    """

    sampler = "shuffled"  # as NormSoftmax, for the paper's balanced batches too
    needs_positives = False
    images_per_class = 5  # Zhai & Wu 2019, section 6.1, on Stanford Online Products

    def __init__(
        self,
        embedding_dim: int,
        num_classes: int,
        *,
        ratio: float | None = None,
        classes: int | None = None,
        temperature: float = 0.05,
        sparse: bool = True,
    ) -> None:
        super().__init__()
        if ratio is not None and classes is not None:
            raise ValueError(f"ratio is {ratio} and classes is {classes}; one of them says how many, leave one out")
        if ratio is not None and not 0 < ratio <= 1:
            raise ValueError(f"ratio is {ratio}; it is a share of the classes, above 0 and at most 1")
        if classes is not None and not 1 <= classes <= num_classes:
            raise ValueError(f"classes is {classes}; it is a number of the {num_classes} classes, at least 1")
        share = 0.1 if ratio is None else ratio
        self.sampled = max(1, round(share * num_classes)) if classes is None else classes
        self.sparse = sparse
        self.proxies = uniform(num_classes, embedding_dim)
        scale = 1 / positive("temperature", temperature, "what the cosines are divided by")
        self.register_buffer("scale", torch.tensor(scale))

    def contradictions(self, train: Train, net: Network) -> list[Problem]:
        """As for every loss, and only the project's own SGD reads a sparse gradient."""
        problems = super().contradictions(train, net)
        if self.sparse and train.optimizer != "sgd":
            reason = f"{train.optimizer} takes no gradient of some rows"
            problems.append(
                Problem("train", f"{reason}. Set loss.sparse = false, or use sgd", ("optimizer", "loss.sparse"))
            )
        return problems

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar."""
        classes, places = draw_classes(labels, len(self.proxies), self.sampled)
        proxies = F.embedding(classes, self.proxies, sparse=self.sparse)  # (S, D)
        return F.cross_entropy(self.scale * F.linear(unit(embeddings), unit(proxies)), places)


def draw_classes(labels: Tensor, num_classes: int, size: int) -> tuple[Tensor, Tensor]:
    """The classes of a batch's denominator.

    Args:
        labels: (B,) of the batch.
        num_classes: C.
        size: how many classes; the batch's own, if there are more.

    Returns:
        (S,) different classes, first the batch's own in ascending order; and (B,) the place of each label in them.
    """
    batch_classes, places = labels.unique(return_inverse=True)
    sampled = draw(num_classes - len(batch_classes), max(size - len(batch_classes), 0), labels.device)
    # The j-th class that is not the batch's own: those of its own that come before it are skipped.
    skipped = torch.searchsorted(
        batch_classes - torch.arange(len(batch_classes), device=batch_classes.device), sampled, right=True
    )
    return torch.cat([batch_classes, sampled + skipped]), places


def draw(population: int, size: int, device: torch.device) -> Tensor:
    """(size,) different numbers in 0 ... population - 1, every such set equally likely, in time O(size log size)."""
    if 3 * size >= population:
        return torch.randperm(population, device=device)[:size]
    numbers = torch.empty(0, dtype=torch.int64, device=device)
    while len(numbers) < size:
        # At least two thirds of the numbers are free, so that a few rounds do. Each draws half as many more than
        # needed.
        further_numbers = torch.randint(population, (size + size // 2 + 8,), device=device)
        numbers = torch.cat([numbers, further_numbers]).unique()
    # Sorted now: the first ones would be the smallest numbers.
    return numbers[torch.randperm(len(numbers), device=device)[:size]]

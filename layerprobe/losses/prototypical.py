"""Prototypical loss: softmax over distances to the means of an episode's classes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss
from layerprobe.values.sections import Network, Problem, Train


class Prototypical(Loss):
    """Mean over the queries a of -ln( exp(-d(x_a, mu_a)) / sum over the episode's classes k of exp(-d(x_a, mu_k)) ).

    Fehervari et al. 2019, equation 13; d the squared Euclidean distance, as in Snell et al. (NeurIPS 2017), mu_k the
    mean of the class's support images. The first `support` images of each class in the batch's order are its support,
    the others its queries; embeddings are taken as they are (their table 1). Classes without queries stay in the
    denominator. A collapsed batch costs ln of the number of classes.

    Args:
        embedding_dim, num_classes: not used.
        support: images of a class that make its prototype, at least 1; 5 in the code of Fehervari et al., with 5
            queries of each of 12 classes.
    """

    sampler = "episodes"
    needs_positives = True
    images_per_class = 10

    def __init__(self, embedding_dim: int, num_classes: int, *, support: int = 5) -> None:
        super().__init__()
        if support < 1:
            raise ValueError(f"support is {support}; it is a number of images, at least 1")
        self.support = support

    def contradictions(self, train: Train, net: Network) -> list[Problem]:
        """As for every loss, and a class needs more images than its support, which has no query otherwise."""
        problems, k = super().contradictions(train, net), train.images_per_class
        if k is not None and k <= self.support:
            shortage = f"support = {self.support} leaves no query of images_per_class = {k}"
            problems.append(
                Problem("loss", f"{shortage}. Raise train.images_per_class", ("support", "train.images_per_class"))
            )
        return problems

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings and (B,) labels -> scalar.

        Raises:
            ValueError: one class only, or none with more than `support` images.
        """
        classes, places = labels.unique(return_inverse=True)
        membership = F.one_hot(places, len(classes))  # (B, K)
        is_support = membership.cumsum(0).gather(1, places[:, None])[:, 0] <= self.support
        if len(classes) < 2 or bool(is_support.all()):
            raise ValueError(
                f"an episode without queries: it needs two classes and more than support = {self.support} images of one"
            )
        weights = (membership * is_support[:, None]).to(embeddings.dtype)
        prototypes = weights.T @ embeddings / weights.sum(0)[:, None]  # (K, D)
        queries = embeddings[~is_support]
        distances = (queries[:, None] - prototypes[None]).square().sum(2)  # (Q, K)
        return F.cross_entropy(-distances, places[~is_support])

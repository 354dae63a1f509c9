"""Structured clustering: the facility location score of the classes against that of the worst clustering."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.losses.loss import Loss, at_least_zero
from layerprobe.losses.vectors import euclidean, unit

_SWAPS = 5  # rounds of medoid swaps at most; they end when nothing gains


class StructuredClustering(Loss):
    """[ max over medoids S, |S| = K, of F(X, S) + gamma (1 - NMI(g(S), Y)) - F(X, Y) ]_+ of a batch of K classes.

    Fehervari et al. 2019, equations 10 to 12 (from Song et al., CVPR 2017), with the facility location score
    F(X, S) = -sum over i of min over j in S of |x_i - x_j|, which they do not write out, and F(X, Y) the classes' own,
    each with its best medoid. The maximum is sought by greedy choice and then by swapping medoids within their clusters
    while that gains. Gradients flow through the distances, not through the choice of clusters. NMI is the mutual
    information by the geometric mean of the entropies, as in their code. Embeddings have length 1 (their table 1).
    Values are sums over the batch. `informative` is 1 where the loss is not 0. A collapsed batch costs gamma times at
    most 1.

    Args:
        embedding_dim, num_classes: not used.
        gamma: weight of the structured margin, at least 0; 1 to 10 by Song et al.
    """

    sampler = "classes"
    needs_positives = True
    images_per_class = 5

    def __init__(self, embedding_dim: int, num_classes: int, *, gamma: float = 1.0) -> None:
        super().__init__()
        self.gamma = at_least_zero("gamma", gamma, "the weight of the structured margin")

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """(B, D) embeddings of any length and (B,) labels -> scalar.

        Raises:
            ValueError: one class only.
        """
        classes, places = labels.unique(return_inverse=True)
        if len(classes) < 2:
            raise ValueError("a batch of one class cannot be clustered: it needs two")
        distances = euclidean(unit(embeddings))
        fixed = distances.detach()
        medoids = worst_medoids(fixed, places, self.gamma)
        nearest = medoids[fixed[:, medoids].argmin(1)]
        own_medoids = best_medoids(fixed, places)[places]
        rows = torch.arange(len(labels), device=labels.device)
        margin = (1 - nmi(fixed[:, medoids].argmin(1)[None], places)[0]).to(distances.dtype)
        value = F.relu(self.gamma * margin - distances[rows, nearest].sum() + distances[rows, own_medoids].sum())
        self.informative = (value.detach() > 0).sum()
        return value


def best_medoids(distances: Tensor, places: Tensor) -> Tensor:
    """(K,) of each class 0 ... K - 1 the image with the smallest sum of distances to its others."""
    same = places[:, None] == places[None, :]
    totals = (distances * same).sum(1)
    return torch.stack([totals.masked_fill(places != k, torch.inf).argmin() for k in range(int(places.max()) + 1)])


def worst_medoids(distances: Tensor, places: Tensor, gamma: float) -> Tensor:
    """(K,) medoids whose score and structured margin are large together: greedy, then swaps within clusters.

    Args:
        distances: (B, B).
        places: (B,) classes 0 ... K - 1.
        gamma: weight of the margin.
    """
    count, clusters = len(places), int(places.max()) + 1
    chosen: list[int] = []
    for _ in range(clusters):
        free = [i for i in range(count) if i not in chosen]
        sets = torch.tensor([[*chosen, i] for i in free], device=places.device)
        chosen.append(free[int(_scores(distances, sets, places, gamma).argmax())])
    medoids = torch.tensor(chosen, device=places.device)
    for _ in range(_SWAPS):
        before = medoids.clone()
        for k in range(clusters):
            members = (distances[:, medoids].argmin(1) == k).nonzero()[:, 0]
            # A member of another cluster's point may be a medoid already: sets have K different ones.
            members = members[(members[:, None] != medoids[None]).all(1) | (members == medoids[k])]
            if len(members) < 2:
                continue
            sets = medoids.repeat(len(members), 1)
            sets[:, k] = members
            scores = _scores(distances, sets, places, gamma)
            best = int(scores.argmax())
            if scores[best] > _scores(distances, medoids[None], places, gamma)[0]:
                medoids[k] = members[best]
        if torch.equal(before, medoids):
            break
    return medoids


def _scores(distances: Tensor, sets: Tensor, places: Tensor, gamma: float) -> Tensor:
    """(S,) F(X, S) + gamma (1 - NMI) of (S, k) sets of medoids."""
    nearest, assigned = distances[:, sets].min(2)  # (B, S)
    return gamma * (1 - nmi(assigned.T, places)).to(distances.dtype) - nearest.sum(0)


def nmi(clusters: Tensor, places: Tensor) -> Tensor:
    """(S,) float64 normalised mutual information of each clustering with the classes.

    Args:
        clusters: (S, B) a cluster for each image, from 0.
        places: (B,) classes 0 ... K - 1.

    Returns:
        In [0, 1], by the geometric mean of the entropies; 1 where both have a single group and 0 where only one has, as
        in scikit-learn.
    """
    classes, groups = int(places.max()) + 1, int(clusters.max()) + 1
    cells = clusters * classes + places
    counts = torch.zeros(len(clusters), groups * classes, dtype=torch.float64, device=places.device)
    counts.scatter_add_(1, cells, torch.ones_like(cells, dtype=torch.float64))
    counts = counts.view(-1, groups, classes)
    # Whole numbers are summed: shares might not add up to 1, and a single group would have an entropy above 0.
    joint, rows, columns = (table / len(places) for table in (counts, counts.sum(2), counts.sum(1)))
    expected = rows[:, :, None] * columns[:, None]
    mutual = (torch.special.xlogy(joint, joint) - torch.special.xlogy(joint, expected)).sum((1, 2))
    of_rows, of_columns = (-torch.special.xlogy(x, x).sum(1) for x in (rows, columns))
    product = of_rows * of_columns
    # Where an entropy is 0: 1 if both labellings have a single group, else 0.
    alone = (of_rows == of_columns).double()
    return torch.where(product > 0, mutual / product.where(product > 0, 1.0).sqrt(), alone).clamp(0, 1)

"""Length of the gradient of a softmax loss with respect to the feature (Zhang et al. 2018, figures 1 and 3).

Equation 1 has p = softmax(alpha z) of the logits z_m = w_m . x + b_m, and equation 3 the gradient with respect to x,

    dl/dx = alpha * sum over m of (p_m - q_m) w_m,    q_m = 1 for the image's class, else 0.

x is the feature as the classifier takes it: of length 1 (f / |f|), batch-normalised, or f itself. Where x = f / |f|,
the gradient with respect to f follows by equations 11 and 12, (dl/dx - (dl/dx . x) x) / |f|.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from layerprobe.values.retrieval import FloatArray, IntArray

CENTROID, BOUNDARY, INCORRECT = "centroid", "boundary", "incorrect"
_SHARE = 0.1  # of the correct images that are centroid, and boundary
_MOST = 500  # images of a kind, as evenly spaced in their order as possible
_ROWS = 1024  # images whose distances to all decision boundaries are made at once


@dataclass(frozen=True, eq=False)
class Classified:
    """Features, and the classifier that was trained on them, in float64.

    Args:
        features: (N, D) before they get length 1, none of length 0.
        labels: (N,) 0 ... C - 1.
        weight: (C, D).
        bias: (C,), of z: the loss's bias divided by alpha.
        alpha: as trained.
        unit: whether x = f / |f|, else x = f.
    """

    features: FloatArray
    labels: IntArray
    weight: FloatArray
    bias: FloatArray
    alpha: float
    unit: bool

    @property
    def directions(self) -> FloatArray:
        """(N, D) f / |f|."""
        return self.features / self.norms[:, None]

    @property
    def norms(self) -> FloatArray:
        """(N,) |f|."""
        return np.asarray(np.linalg.norm(self.features, axis=1), np.float64)

    @property
    def x(self) -> FloatArray:
        """(N, D) the features as the classifier takes them."""
        return self.directions if self.unit else self.features

    def of(self, rows: IntArray) -> Classified:
        """Some of the images."""
        return Classified(self.features[rows], self.labels[rows], self.weight, self.bias, self.alpha, self.unit)

    def by_alpha(self, alphas: FloatArray) -> FloatArray:
        """(A, N) |dl/dx| at each alpha."""
        return np.stack([np.linalg.norm(self._gradient(self.x, alpha), axis=1) for alpha in alphas])

    def by_norm(self, norms: FloatArray) -> FloatArray:
        """(R, N) |dl/df| at the trained alpha if each feature had this length, in its own direction."""
        directions = self.directions
        if not self.unit:
            lengths = [self._gradient(norm * directions, self.alpha) for norm in norms]
            return np.stack([np.linalg.norm(gradient, axis=1) for gradient in lengths])
        gradient = self._gradient(directions, self.alpha)
        across = gradient - (gradient * directions).sum(1, keepdims=True) * directions
        return np.asarray(np.linalg.norm(across, axis=1) / norms[:, None], np.float64)

    def _gradient(self, x: FloatArray, alpha: float) -> FloatArray:
        logits = alpha * (x @ self.weight.T + self.bias)
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        own_logits = np.arange(len(x)), self.labels
        # 1 - p of the own class as the sum of the others, which does not cancel where p is almost 1.
        p[own_logits] = 0
        p[own_logits] = -p.sum(1)
        return np.asarray(alpha * (p @ self.weight), np.float64)

    def margins(self) -> FloatArray:
        """(N,) signed distance from x to the nearest decision boundary, above 0 for a correct image.

        The least over the other classes m of (z_y - z_m) / |w_y - w_m|; infinite for classes of equal weights.
        """
        distances_of_blocks = []
        squares = (self.weight**2).sum(1)
        for start in range(0, len(self.labels), _ROWS):
            block = self.of(np.arange(start, min(start + _ROWS, len(self.labels))))
            x, rows, own_weights = block.x, np.arange(len(block.labels)), self.weight[block.labels]
            z = x @ self.weight.T + self.bias
            ahead = z[rows, block.labels][:, None] - z
            apart = np.sqrt(np.maximum(squares[block.labels][:, None] + squares - 2 * own_weights @ self.weight.T, 0))
            distances = np.divide(ahead, apart, out=np.copysign(np.inf, ahead), where=apart > 0)
            distances[(apart == 0) & (ahead == 0)] = 0
            distances[rows, block.labels] = np.inf
            distances_of_blocks.append(distances.min(1))
        return np.concatenate(distances_of_blocks)


def kinds_of(margins: FloatArray) -> dict[str, IntArray]:
    """The images of each kind of section 3.2 of the paper, each at most 500 of them.

    Incorrect: another class's logit is at least as large as the own one's. Of the correct ones, "close to the decision
    boundary" are the tenth with the smallest `margins`, and "close to the center of the region that belongs to the
    category" the tenth with the largest; the paper gives no numbers.

    Returns:
        Kind -> rows; without a kind that has no image. A single correct image is centroid.
    """
    order = np.argsort(margins, kind="stable")
    wrong = order[margins[order] <= 0]
    correct = order[len(wrong) :]
    count = max(1, round(_SHARE * len(correct)))
    rows_by_kind = {CENTROID: correct[-count:], BOUNDARY: correct[: min(count, len(correct) - 1)], INCORRECT: wrong}
    thinned = {}
    for kind, rows in rows_by_kind.items():
        if len(rows):
            places = np.linspace(0, len(rows) - 1, min(len(rows), _MOST)).round().astype(int)
            thinned[kind] = np.asarray(rows[places], np.int64)
    return thinned

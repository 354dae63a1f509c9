"""shift: what changes no class's probability is taken away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from layerprobe.post_processing.post_processing import FitInputs, InTurn, NotApplicableError, PostProcessing, Projection

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.post_processing.post_processing import FittedStep


class Shift(PostProcessing):
    """Euclidean distances become those "with probability invariant shift" of Horiguchi et al., 2019, section 4.4.

    Two features give the same probabilities softmax(W x + b) where they differ by c u with W u = 1 (equation 3; every
    logit grows by c), or by a vector of W's null space. Their distance (equations 4 and 5) is the least over all such
    shifts, u_0 being W^T (W W^T)^-1 1 and the v_i a basis of W's null space:

        d(x1, x2) = min over c_0, c_i of |x1 - x2 - c_0 u_0 - sum_i c_i v_i|

    That is the length of x1 - x2 projected onto the orthogonal complement of all shifts, so the features' projections
    have these distances. With W^T = Q R, u_0 = Q R^-T 1, and the projection is Q (I - s s^T) Q^T, s being R^-T 1
    divided by its length: for C classes it has C - 1 dimensions. Features keep their D numbers; `shift+pca:D` has
    fewer. The equations sum up to D - 1 vectors v_i, where the null space has D - C. The paper's distance is Euclidean:
    search by `euclidean`. The bias does not matter. No feature is read.
    """

    needs_classifier = True

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - no feature is needed
        """The projection; no batch is read.

        Raises:
            NotApplicableError: there is no classifier, or one of other features; it has as many classes as features
                have dimensions, or more; its classes' weights are linearly dependent.
        """
        import torch

        classifier_weight = inputs.classifier_weight
        if classifier_weight is None:
            raise NotApplicableError(
                "shift: it needs the weights of a classifier, and none was trained on these features",
                fix="Take the layer before the classifier of a softmax loss, or leave shift out",
            )
        classes, classifier_dim = classifier_weight.shape
        if classifier_dim != dim:
            raise NotApplicableError(
                f"shift: the classifier takes features of {classifier_dim} dimensions, these have {dim}",
                fix="Put shift before what changes the dimensions",
            )
        if dim <= classes:
            raise NotApplicableError(
                f"shift: the features have {dim} dimensions and the classifier {classes} classes; only where there are "
                f"more dimensions than classes is there sure to be a shift that changes no probability",
                fix="Leave shift out",
            )
        weight = classifier_weight.to(torch.float64)
        if int(torch.linalg.matrix_rank(weight)) < classes:
            raise NotApplicableError(
                "shift: the classifier's weights of some classes follow from those of others, so that there need be no "
                "shift that changes no probability",
                fix="Leave shift out",
            )
        q, r = torch.linalg.qr(weight.T)
        same = torch.linalg.solve_triangular(r.T, torch.ones_like(r[:, :1]), upper=False)
        same /= same.norm()
        directions = q - q @ same @ same.T
        return InTurn((Projection(q), Projection(directions.T)))

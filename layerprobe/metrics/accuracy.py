"""Accuracy of the trained classifier on the layer that it multiplies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from layerprobe.metrics.metric import Metric
from layerprobe.system.errors import NumericError
from layerprobe.values.retrieval import Retrieval

_ROWS = 4096


class Accuracy(Metric):
    """Share of the images whose class has the largest logit.

    Of training images (Zhang et al. 2018, table 7), and of test images where their classes were trained (table 4 there:
    the official splits of fine-grained classification). Where several classes have the largest logit, it is the
    expected value of choosing one of them at random: 1 / C where all logits are equal. Nothing is searched: the
    rules of a search (`SearchRules`) change nothing.
    """

    def __call__(self, retrieval: Retrieval) -> Mapping[str, float]:
        """`accuracy`, in [0, 1]; nothing for a layer without a classifier and for classes that were not trained.

        Raises:
            NumericError: a logit is not finite.
        """
        classifier = retrieval.classifier
        if classifier is None:
            return {}
        columns = np.searchsorted(classifier.classes, retrieval.labels)
        is_trained = classifier.classes[np.minimum(columns, len(classifier.classes) - 1)] == retrieval.labels
        if not is_trained.all():
            return {}
        import torch  # slow to import, and the names of metrics are checked without it

        features = torch.as_tensor(retrieval.features)
        hits = 0.0
        for rows, targets in zip(features.split(_ROWS), torch.from_numpy(columns).split(_ROWS), strict=True):
            logits = classifier.logits(rows)
            if not bool(torch.isfinite(logits).all()):
                raise NumericError("a logit is not finite")
            largest = logits == logits.amax(1, keepdim=True)
            hit = largest.gather(1, targets.to(logits.device)[:, None])[:, 0]
            hits += float((hit / largest.sum(1)).double().sum())
        return {"accuracy": hits / len(features)}

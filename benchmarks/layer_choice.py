"""Simple ways to choose a layer by the training classes, and what each costs on the test classes.

    python benchmarks/layer_choice.py RUN [RUN ...] [--epochs N [N ...]] [--split SPLIT]

RUN is the folder of a run whose features and R@1 of the split and of `test` are stored by `layerprobe probe`. For each
run and epoch a line for each way: the layer that it picks, that layer's R@1 on test, and its regret, the difference
from the best layer on test, in points. The last lines are means over the runs and epochs. Ties go to the earlier layer.

The ways: the last layer; the best R@1 on the split; the lowest score of LOES there, once as it is and once of as many
dimensions of every layer, drawn at random; the largest effective rank there, which uses no labels. `loes_scores` says
where the formula of LOES comes from.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import ArrayLike, NDArray

import layerprobe
from layerprobe.metrics.geometry import EffectiveRank
from layerprobe.ranking import retrieval
from layerprobe.system.errors import NumericError
from layerprobe.values.layers import NO_POST_PROCESSING
from layerprobe.workflow.run.opened_run import OpenedRun

FloatArray = NDArray[np.float64]

# The defaults of `select_layers_from_custom_embeddings`.
RIDGE, ALPHA, EPSILON = 1e-3, 1.0, 1e-6
# Above so many dimensions the authors take the squared singular values, without those that N rows leave at 0.
_SINGULAR_ABOVE = 512


def loes_scores(features: Mapping[str, ArrayLike], labels: ArrayLike) -> dict[str, float]:
    """The score by which LOES picks its first layer: a ridge regression's residual, and how uneven the spectrum is.

    Batra et al., Uncovering the Latent Potential of Deep Intermediate Representations, arXiv 2605.23033, 2026. The
    formula is that of the authors' code, `_loes_select` in loes/api.py and `compute_all_layer_scores` in
    experiments/main_image.py of github.com/arnesh2212/loes; their equations were not read. With X the features and Y
    the one-hot classes, both centred, W = (X^T X + 0.001 I)^-1 X^T Y, and with the eigenvalues e of the covariance

        score = mean((X W - Y)^2) + 1 - mean(e) / (std(e) + 1e-6)

    Up to 512 dimensions, e are all eigenvalues of X^T X / N + 1e-6 I; above, the min(N, D) squared singular values of X
    divided by N, at least 1e-6. Features are taken as they are, not of unit length. Unlike there, all is float64, the
    columns of Y are the classes that occur, and layers may differ in dimension: the authors' layers have one, and with
    many classes, where the residual is small, the second term favours layers of few dimensions. The terms that the code
    adds for a second and third layer (redundancy, triangles of centroids) are no part of the first choice and left out.

    Args:
        features: layer -> (N, D), finite.
        labels: (N,) classes.

    Returns:
        layer -> score; the lowest is LOES's choice. Any number: negative for an even spectrum.

    Raises:
        NumericError: features that are not finite.
        ValueError: shapes that do not fit, or a single row.
    """
    classes = np.unique(np.asarray(labels), return_inverse=True)[1]
    targets = np.eye(classes.max() + 1)[classes]
    targets -= targets.mean(0)
    scores = {}
    for layer, given in features.items():
        values = np.array(given, np.float64)
        if values.ndim != 2 or len(values) != len(targets) or len(values) < 2:
            raise ValueError(f"{layer}: expected ({len(targets)}, D) with two rows or more, got {values.shape}")
        if not np.isfinite(values).all():
            raise NumericError(f"{layer}: a feature is not finite")
        values -= values.mean(0)
        weights = np.linalg.solve(values.T @ values + RIDGE * np.eye(values.shape[1]), values.T @ targets)
        residual = float(np.square(values @ weights - targets).mean())
        scores[layer] = residual + ALPHA * (1 - _isotropy(values))
    return scores


def _isotropy(centred: FloatArray) -> float:
    """Mean over standard deviation of the covariance's eigenvalues, as `loes_scores` says."""
    count, dim = centred.shape
    if dim > _SINGULAR_ABOVE:
        eigenvalues = np.square(np.linalg.svd(centred, compute_uv=False)) / count
    else:
        eigenvalues = np.linalg.eigvalsh(centred.T @ centred / count + EPSILON * np.eye(dim))
    eigenvalues = np.maximum(eigenvalues, EPSILON)
    return float(eigenvalues.mean() / (eigenvalues.std() + EPSILON))


def of_one_dimension(features: Mapping[str, ArrayLike], seed: int = 0) -> dict[str, FloatArray]:
    """As many dimensions of each layer as the smallest has, drawn at random.

    Args:
        features: layer -> (N, D).
        seed: of the draw.
    """
    rng = np.random.default_rng(seed)
    values = {layer: np.asarray(given, np.float64) for layer, given in features.items()}
    fewest = min(each.shape[1] for each in values.values())
    return {layer: each[:, rng.permutation(each.shape[1])[:fewest]] for layer, each in values.items()}


def effective_ranks(features: Mapping[str, ArrayLike]) -> dict[str, float]:
    """The effective rank of each layer's unit features, as the metric `effective-rank` has it.

    Args:
        features: layer -> (N, D), finite.

    Raises:
        NumericError: features that are not finite, or all zero.
    """
    metric, ranks = EffectiveRank(), {}
    for layer, given in features.items():
        values = np.asarray(given)
        ranks[layer] = metric(retrieval(values, np.zeros(len(values), np.int64)))["effective-rank"]
    return ranks


def picks(features: Mapping[str, ArrayLike], labels: ArrayLike, recall: Mapping[str, float]) -> dict[str, str]:
    """The layer that each way picks.

    Args:
        features: layer -> (N, D) of the split that is chosen on, layers in execution order.
        labels: (N,) classes.
        recall: layer -> R@1 on that split.

    Returns:
        way -> layer, in the order in which they are shown.

    Raises:
        NumericError: features that are not finite.
    """
    layers = list(features)
    loes, equal = loes_scores(features, labels), loes_scores(of_one_dimension(features), labels)
    ranks = effective_ranks(features)
    return {
        "last layer": layers[-1],
        "best on split": max(layers, key=recall.__getitem__),
        "LOES": min(layers, key=loes.__getitem__),
        "LOES, equal dim": min(layers, key=equal.__getitem__),
        "effective rank": max(layers, key=ranks.__getitem__),
    }


def regrets(chosen: Mapping[str, str], test: Mapping[str, float]) -> dict[str, float]:
    """How far the layer of each way lies below the best one on test, in the unit of `test`; at least 0.

    Args:
        chosen: way -> layer.
        test: layer -> R@1.
    """
    best = max(test.values())
    return {way: best - test[layer] for way, layer in chosen.items()}


def recalls(opened: OpenedRun, epoch: int, split: str) -> dict[str, float]:
    """Stored R@1 of each layer in percent, without post-processing, by cosine; layers in execution order."""
    return {
        str(score.ranked.layer): 100 * score.value
        for score in opened.run.scores()
        if (score.epoch, score.split, score.metric) == (epoch, split, "R@1")
        and (score.ranked.post_processing, score.ranked.similarity) == (NO_POST_PROCESSING, "cosine")
        and score.value is not None
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What simple ways to choose a layer cost on the test classes.")
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--epochs", type=int, nargs="+", help="by default the last one that is stored")
    parser.add_argument("--split", default="train", help="the classes that are chosen on (train)")
    arguments = parser.parse_args()
    lost: dict[str, list[float]] = {}
    for path in arguments.runs:
        opened = layerprobe.open_run(path)
        stored = max(score.epoch for score in opened.run.scores())
        for epoch in arguments.epochs or [stored]:
            on_split, test = (recalls(opened, epoch, split) for split in (arguments.split, "test"))
            layers = [layer for layer in test if layer in on_split]
            read = {name: opened.features(epoch=epoch, split=arguments.split, layer=name) for name in layers}
            chosen = picks(read, opened.labels(epoch=epoch, split=arguments.split), on_split)
            print(f"{opened.run.name}, epoch {epoch}, {len(layers)} layers, chosen on {arguments.split}")
            for way, regret in {**regrets(chosen, test), "best on test": 0.0}.items():
                layer = chosen.get(way) or max(layers, key=test.__getitem__)
                print(f"  {way:<16}{layer:<16}test R@1 {test[layer]:5.1f}   regret {regret:4.1f}")
                lost.setdefault(way, []).append(regret)
    print(f"mean regret over {len(lost['LOES'])} runs and epochs")
    for way, values in lost.items():
        print(f"  {way:<16}{np.mean(values):4.1f}")


if __name__ == "__main__":
    main()

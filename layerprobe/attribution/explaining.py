"""Why two images are similar at a layer, and whether the maps show what the weights have learned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.attribution.maps import (
    USUAL,
    Division,
    Integrated,
    MapCall,
    ScoredLayer,
    grad_cam,
    integrated_gradients,
    maps_before,
    watch_map,
)
from layerprobe.hooks import Measured
from layerprobe.system.computing import full_precision
from layerprobe.values.explanations import Attribution, Explanation, RankCorrelation

_NO_MAP = "no Grad-CAM: no named layer at or before it has a map that it depends on"
_JUMPS = (
    "completeness cannot hold: the similarity jumps at the baseline, where the features are a zero vector or nearly"
)


@dataclass(frozen=True, eq=False)
class _Maps:
    """The maps of two images.

    Args:
        places: (h, w) each; None where there is no map.
    """

    similarity: float
    integrated: tuple[Integrated, Integrated]
    places: tuple[Tensor | None, Tensor | None]


def explain(
    measured: Measured,
    scored: ScoredLayer,
    images: tuple[Tensor, Tensor],
    *,
    random: nn.Module | None = None,
    advance: Callable[[], None] = lambda: None,
) -> Explanation:
    """Integrated gradients and Grad-CAM of the similarity of two images, over the pixels of each.

    The features of the other image are fixed. The network runs in evaluation mode, in float32.

    Args:
        measured: the network, which is not changed.
        images: query and neighbour, (1, C, H, W) float32 each, normalised, on the network's device.
        random: the same network with random weights; its maps are correlated with these.
        advance: called after the maps of each image: twice, and with random weights four times.
    """
    module = measured.net.module
    with full_precision(images[0].device), _deterministic():
        at = _map_of(measured, scored, images)
        maps = _maps(module, scored, images, at, advance)
        # The same steps: else maps would differ by more than the weights.
        divisions = [
            attribution.division if len(attribution.division) <= USUAL else Division.equal(USUAL)
            for attribution in maps.integrated
        ]
        other = None if random is None else _maps(random, scored, images, at, advance, divisions)
    notes = ((_NO_MAP, at is None), (_JUMPS, any(attribution.jumps for attribution in maps.integrated)))
    return Explanation(
        scored.ranked,
        maps.similarity,
        _attribution(maps, other, 0),
        _attribution(maps, other, 1),
        None if at is None else str(at),
        tuple(note for note, holds in notes if holds),
    )


def _map_of(measured: Measured, scored: ScoredLayer, images: tuple[Tensor, Tensor]) -> MapCall | None:
    """The last map at or before a layer on which the similarity depends; None if there is none."""
    module = measured.net.module
    for at in maps_before(scored.layer, measured):
        with watch_map(module, at) as through, scored.embedding(module) as embed:
            with torch.no_grad():
                other = embed(images[1])
            if grad_cam(scored.score(embed, other), through, images[0]).any():
                return at
    return None


def _maps(  # noqa: PLR0913 - what is explained, and along which steps
    module: nn.Module,
    scored: ScoredLayer,
    images: tuple[Tensor, Tensor],
    at: MapCall | None,
    advance: Callable[[], None],
    divisions: Sequence[Division | None] = (None, None),
) -> _Maps:
    integrated: list[Integrated] = []
    places: list[Tensor | None] = []
    with contextlib.ExitStack() as stack:
        through = None if at is None else stack.enter_context(watch_map(module, at))
        embed = stack.enter_context(scored.embedding(module))
        with torch.no_grad():
            features = [embed(image) for image in images]
            similarity = float(scored.score(embed, features[1])(images[0]))
        for image, other, division in zip(images, reversed(features), divisions, strict=True):
            score = scored.score(embed, other)
            integrated.append(integrated_gradients(score, image, division))
            places.append(None if through is None else grad_cam(score, through, image).sum(0))
            advance()
    return _Maps(similarity, (integrated[0], integrated[1]), (places[0], places[1]))


def _attribution(maps: _Maps, random: _Maps | None, side: int) -> Attribution:
    integrated, places = maps.integrated[side], _array(maps.places[side])
    pixels = integrated.pixels.cpu().numpy()
    attribution = Attribution(pixels, integrated.difference, integrated.error, len(integrated.division), places)
    if random is None:
        return attribution
    random_maps = random.integrated[side].pixels.cpu().numpy(), _array(random.places[side])
    checked = None if places is None or random_maps[1] is None else agreement(places, random_maps[1])
    return replace(attribution, random_pixels=agreement(pixels, random_maps[0]), random_places=checked)


def _array(values: Tensor | None) -> NDArray[np.float32] | None:
    return None if values is None else values.cpu().numpy()


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """The same gradients each time, for which cuDNN convolutions have other algorithms."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


def agreement(maps: NDArray[np.float32], other_maps: NDArray[np.float32]) -> RankCorrelation:
    """Spearman's rank correlation of two maps, and of their absolute values.

    Adebayo et al., Sanity Checks for Saliency Maps, NeurIPS 2018: the model parameter randomisation test, with all
    weights random. Near 1: the map shows the images and the architecture, not what training has changed.

    Args:
        maps: any shape.
        other_maps: the same.
    """
    return RankCorrelation(_rank_correlation(maps, other_maps), _rank_correlation(np.abs(maps), np.abs(other_maps)))


def _rank_correlation(maps: NDArray[np.float32], other_maps: NDArray[np.float32]) -> float | None:
    from scipy.stats import spearmanr

    if not all(np.isfinite(array).all() and array.min() < array.max() for array in (maps, other_maps)):
        return None
    return float(spearmanr(maps.ravel(), other_maps.ravel()).statistic)

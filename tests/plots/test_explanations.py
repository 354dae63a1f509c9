from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from layerprobe.plots.explanations import draw
from layerprobe.values.explanations import Attribution, ExplainedNeighbour, ExplainedQuery, Explanation, RankCorrelation
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import FoundItem, Item


def attribution(seed: int) -> Attribution:
    rng = np.random.default_rng(seed)
    pixels, places = (rng.normal(size=size).astype(np.float32) for size in ((20, 30), (2, 3)))
    return Attribution(pixels, 0.41, 0.0042, 100, places, RankCorrelation(0.012, 0.47), RankCorrelation(-0.3, None))


def explained(names: Sequence[str] = ("pool5.3", "fc6"), channels: int = 3) -> ExplainedQuery:
    image = np.random.default_rng(0).integers(0, 256, (20, 30, channels)).astype(np.uint8)
    neighbours = []
    for place, name in enumerate(names):
        ranked = RankedLayer(LayerKey(name, "none"), "none", "cosine")
        own = Explanation(ranked, 0.876, attribution(place), attribution(place + 9), f"{name} (2x3)")
        found = FoundItem(Item(f"b/{place}.png", "class b"), 0.876, place == 0)
        neighbours.append(ExplainedNeighbour(found, image, own))
    return ExplainedQuery("one", 3, "test", Item("a/1.png", "class a"), image, tuple(neighbours), ("Query: a/1.png",))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]


def test_maps_and_numbers_are_those_of_the_explanations(overlaps: Callable[[Figure], list[tuple[str, str]]]) -> None:
    found = explained()
    figure = draw(found)
    (axes,) = figure.axes
    drawn = [np.asarray(image.get_array()) for image in axes.images]
    sides = [side for one in found.neighbours for _, side in one.explanation.sides]
    assert len(drawn) == 12
    for side, pixels, places in zip(sides, drawn[1::3], drawn[2::3], strict=True):
        assert np.array_equal(pixels, side.pixels)
        assert np.array_equal(places, np.asarray(side.places))
    shown = texts(figure)
    assert shown.count("error 0.42 %") == shown.count("100 steps") == shown.count("r = 0.01") == 4
    assert shown.count("of |map| 0.47") == shown.count("of |map| -") == 4
    assert "fc6: similarity 0.876" in shown
    assert any(text.startswith("Query: a/1.png") for text in shown)
    assert overlaps(figure) == []


@pytest.mark.parametrize("channels", [1, 3])
def test_colours_are_symmetric_about_0(channels: int) -> None:
    (axes,) = draw(explained(channels=channels)).axes
    assert all(low == -high for low, high in (image.get_clim() for image in axes.images[1::3]))


def test_an_explanation_without_grad_cam_and_check_is_drawn() -> None:
    found = explained(["fc6"])
    (one,) = found.neighbours
    bare = replace(attribution(0), places=None, random_pixels=None, random_places=None, error=float("inf"))
    own = replace(one.explanation, query=bare, neighbour=bare, places_of=None, notes=("no Grad-CAM: none",))
    figure = draw(replace(found, neighbours=(replace(one, explanation=own),)))
    assert len(figure.axes[0].images) == 4
    assert "error undefined" in texts(figure)
    assert any("no Grad-CAM: none" in text for text in texts(figure))


def test_the_weights_of_one_file_are_named_instead_of_an_epoch() -> None:
    (axes,) = draw(replace(explained(), epoch=0, weights="weights of own.pth")).axes
    assert axes.get_title(loc="left") == "one, weights of own.pth: why two test images are similar"

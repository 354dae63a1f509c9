from __future__ import annotations

import pytest

from layerprobe.plots.asked import match_layers
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.keys import LayerKey, RankedLayer


def layer(name: str, reduction: str = "none", pool: str = "max") -> RankedLayer:
    return RankedLayer(LayerKey(name, pool), reduction, "cosine")


KNOWN = [layer("pool5.2"), layer("pool5.3"), layer("pool5.3", pool="avg"), layer("fc6"), layer("fc6", "pca:8")]


def test_a_name_means_every_pool_of_the_layer_as_it_is() -> None:
    assert match_layers(("fc6", "pool5.3"), KNOWN) == [KNOWN[3], KNOWN[1], KNOWN[2]]


def test_a_reduction_follows_a_slash() -> None:
    assert match_layers(("fc6/pca:8",), KNOWN) == [KNOWN[4]]


def test_a_glob_after_the_slash_means_all_reductions_that_match() -> None:
    known = [*KNOWN, layer("fc6", "pca:16"), layer("fc6", "random:8")]
    assert match_layers(("fc6/pca:*",), known) == known[4:6]


def test_a_glob_means_all_that_match_and_each_once() -> None:
    assert match_layers(("pool5.?@max", "pool5.2"), KNOWN) == [KNOWN[0], KNOWN[1]]


def test_a_layer_that_is_measured_reduced_alone_needs_no_slash() -> None:
    assert match_layers(("fc6",), [KNOWN[4]]) == [KNOWN[4]]


@pytest.mark.parametrize(("name", "near"), [("pool5.4", "pool5.3@max"), ("fc6/pca:9", "fc6@max/pca:8")])
def test_an_unknown_name_is_told_with_its_near_miss(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'"):
        match_layers((name,), KNOWN)


def test_an_unknown_layer_is_told_the_layers_and_an_unknown_reduction_those_of_its_layer() -> None:
    with pytest.raises(UnknownNameError, match=r"Known: pool5.2@max, .*, fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("conv9",), KNOWN)
    with pytest.raises(UnknownNameError, match=r"Known: fc6@max, fc6@max/pca:8\.?$"):
        match_layers(("fc6/binary",), KNOWN)


def test_a_glob_that_nothing_matches_is_told() -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'nothing"):
        match_layers(("nothing.*",), KNOWN)

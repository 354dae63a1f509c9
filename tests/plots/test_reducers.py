from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.plots.reducers import Reducer, reducer_names, reducer_of, reducer_styles
from tests.plots.test_dims import reductions, sized
from tests.scores import with_layer


def named(*reductions_: tuple[str, int]) -> list[str]:
    return list(reducer_names([reductions(*(sized("fc6", name, 0.5, dim) for name, dim in reductions_))]).values())


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        ("none", "unreduced"),
        ("l2+pca:64+l2", "PCA"),
        ("l2+whiten:64:0.5+l2", "half-whitened"),
        ("whiten:64:1", "whitened"),
        ("l2+whiten:64:0.3+l2", "whitened by 0.3"),
        ("random:64x5+l2", "random projection"),
        ("l2+pca:64+binary", "PCA, binary codes"),
        ("l2+pca:64+l2@gallery", "PCA, fitted on the gallery"),
        ("shift+pca:64", "shift, PCA"),
    ],
)
def test_a_chain_has_a_name_that_people_know(chain: str, name: str) -> None:
    assert named((chain, 64)) == [name]


def test_dimensions_are_no_part_of_a_reducer_and_powers_are() -> None:
    assert reducer_of(sized("fc6", "l2+whiten:1:1+l2", 0.5, 1)) == Reducer("l2+whiten:D:1+l2", "cosine")
    assert reducer_of(sized("fc6", "random:16x5+l2", 0.5, 16)) == Reducer("random:Dx5+l2", "cosine")
    assert named(("l2+pca:8+l2", 8), ("l2+pca:16+l2", 16)) == ["PCA"]


def test_chains_of_one_name_are_called_by_what_they_are() -> None:
    assert named(("pca:8", 8), ("l2+pca:8+l2", 8)) == ["l2+pca:D+l2", "pca:D"]
    cosine = sized("fc6", "pca:8", 0.5, 8)
    dot = replace(cosine, score=with_layer(cosine.score, similarity="dot"))
    assert list(reducer_names([reductions(cosine, dot)]).values()) == ["PCA, cosine", "PCA, dot"]


def test_layers_as_they_are_come_first_and_are_grey_and_all_have_another_look() -> None:
    names = reducer_names(
        [reductions(*(sized("fc6", name, 0.5, 8) for name in ("random:8", "none", "pca:8", "whiten:8:1")))]
    )
    assert list(names.values()) == ["unreduced", "PCA", "random projection", "whitened"]
    styles = list(reducer_styles(names).values())
    assert len({style.marker for style in styles}) == len({style.colour for style in styles}) == 4
    assert len(set(styles[0].colour)) == 1

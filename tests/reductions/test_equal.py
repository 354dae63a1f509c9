from __future__ import annotations

import pytest

from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.equal import equal_dim_of, equal_dimension


@pytest.mark.parametrize(
    ("chain", "dim"),
    [("l2+pca:64+l2", 64), ("whiten:32:1@gallery", 32), ("random:16x5+l2", 16), ("none", None), ("l2", None)],
)
def test_a_chain_with_a_number_of_dimensions_gives_every_layer_this_many(chain: str, dim: int | None) -> None:
    assert equal_dim_of(chain) == dim


def test_layers_are_compared_at_one_dimension_by_three_reductions() -> None:
    chains = equal_dimension(8)
    assert chains == ("l2+pca:8+l2", "l2+whiten:8:0.5+l2", "random:8x5+l2")
    assert [parse_chain(chain).dim(100) for chain in chains] == [8, 8, 8]
    assert [len(parse_chain(chain).members()) for chain in chains] == [1, 1, 5]

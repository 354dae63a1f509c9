"""Names of layers for people."""

from __future__ import annotations

import pytest

from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.values.spoken_names import spoken_name, spoken_reduction


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        ("l2+whiten:128:0.5+l2", "half-whitened to 128"),
        ("whiten:64:1", "whitened to 64"),
        ("l2+whiten:64:0.3+l2", "whitened by 0.3 to 64"),
        ("l2+pca:8+l2", "PCA to 8"),
        ("random:16x5+l2", "random projection to 16"),
        ("l2+pca:64+binary", "PCA to 64, binary codes"),
        ("pca:8+l2@gallery", "PCA to 8, fitted on the gallery"),
        ("l2", "l2"),
        ("shift", "shift"),
    ],
)
def test_a_chain_is_named_by_what_it_does(chain: str, words: str) -> None:
    assert spoken_reduction(chain, dimensions=True) == words


def test_a_layer_is_named_with_its_post_processing() -> None:
    ranked = RankedLayer(LayerKey("blocks.5.0", "avg"), "l2+whiten:128:0.5+l2", "cosine")
    assert spoken_name(ranked) == "blocks.5.0, half-whitened to 128"
    assert spoken_name(ranked, pool=True) == "blocks.5.0 (avg), half-whitened to 128"

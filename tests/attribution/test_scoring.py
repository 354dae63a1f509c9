from __future__ import annotations

import pytest
import torch

import layerprobe
from layerprobe.attribution.scoring import similarities
from layerprobe.values.layers import VECTOR_SIMILARITIES, VectorSimilarity
from tests.attribution.networks import convolutional, image, measured_of, scored


@pytest.mark.parametrize("similarity", VECTOR_SIMILARITIES)
def test_similarities_are_those_of_the_search(similarity: VectorSimilarity) -> None:
    features = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).double()
    found = layerprobe.nearest_neighbours(features, k=1, similarity=similarity)
    for row in range(5):
        nearest = features[found.indices[row, 0]][None]
        (own,) = similarities(features[row][None], nearest, similarity).tolist()
        assert own == pytest.approx(found.similarities[row, 0], abs=1e-12)


def test_a_zero_vector_has_a_cosine_of_0() -> None:
    assert similarities(torch.zeros(1, 3), torch.ones(1, 3), "cosine").tolist() == [0]


def test_the_cosine_of_concatenated_layers_is_the_mean_of_theirs() -> None:
    module = convolutional()
    network = measured_of(module)
    found = []
    for name in ("2@avg", "3@avg", "2+3@avg"):
        with scored(name, network).embedding(module) as embed, torch.no_grad():
            features = embed(torch.cat([image(0), image(1)]))
        found.append(float(similarities(features[:1], features[1:], "cosine")))
    assert found[2] == pytest.approx((found[0] + found[1]) / 2, abs=1e-6)


def test_relus_work_in_place_again_afterwards() -> None:
    module = convolutional()
    with scored("7", measured_of(module)).embedding(module):
        assert not module[1].inplace
    assert module[1].inplace

from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.post_processing.applying import Blocks, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import NotFiniteError
from tests.post_processing.fitting import CPU, features, stored


def test_blocks_are_post_processed_as_the_whole() -> None:
    asked = features(9000, 3)  # three blocks
    found = stored("pca:2", asked, asked)
    expected = parse_chain("pca:2").fit([torch.from_numpy(asked)], 3, seed=0)(torch.from_numpy(asked)).numpy()
    assert found.dtype == np.float32
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_features_that_are_not_finite_are_not_fitted_on() -> None:
    train = features(9000, 3)
    train[5000, 1] = np.inf
    with pytest.raises(NotFiniteError, match="1 of 9000"):
        stored("l2+whiten:2:1", train, features(5, 3))


def test_no_features_are_refused() -> None:
    with pytest.raises(ValueError, match="no features to post-process"):
        stored("l2", features(5, 3), np.zeros((0, 3)))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "chain",
    [
        "l2+pca:8+l2",
        "l2+whiten:8:0.5+l2",
        "random:8:2+l2",
        "shift",
        "layernorm",
        "pca:8+binary",
        "first:8+float16",
        "first:8+int8",
        "l2+lwhiten:8:lw+l2",
        "lda:8",
    ],
)
def test_a_gpu_gives_the_same(chain: str) -> None:
    train, test, weight = features(5000, 12), features(5000, 12, seed=1), torch.from_numpy(features(4, 12, seed=2))
    found, labels = [], np.arange(5000) % 50
    for device in (CPU, torch.device("cuda")):
        blocks, on_device = Blocks(train, device), weight.to(device)
        given = parse_chain(chain).fit(blocks, 12, seed=0, classifier_weight=on_device, labels=labels)
        found.append(process_blocks(Blocks(test, device), given, 5000).cpu().double().numpy())
    assert found[1] == pytest.approx(found[0], rel=1e-6, abs=1e-6)

from __future__ import annotations

import numpy as np
import pytest

from tests.reductions.fitting import features, fitted


def test_each_feature_is_normalised_by_its_own_numbers() -> None:
    asked = features(9, 12) * np.logspace(-3, 3, 9)[:, None]
    centred = asked - asked.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    assert fitted("layernorm", features(4, 12), asked) == pytest.approx(expected, rel=1e-12)


def test_equal_numbers_become_0() -> None:
    assert (fitted("layernorm", features(4, 12), np.full((1, 12), 0.1)) == 0).all()

from __future__ import annotations

from layerprobe.plots.chance import chance_outside
from layerprobe.plots.figure import limits


def test_chance_is_left_out_where_it_would_press_the_data_together() -> None:
    assert limits([50, 80], 1)[0] > 40
    assert chance_outside({"test": (48, 82), "train": (0, 82)}, {"train": 1.0, "test": 1.25}) == [
        "Chance level outside the axes: test 1.2 %."
    ]

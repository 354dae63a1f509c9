from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from layerprobe.system.errors import EnvironmentFault
from layerprobe.trackers.tracker import require_trackers
from tests.trackers.material import log_all

pytest.importorskip("tensorboard")


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_the_event_files_have_numbers_figure_and_recipe(tmp_path: Path) -> None:
    log_all(f"tensorboard:{tmp_path / 'tb'}", tmp_path)
    events = read(tmp_path / "tb" / "mine")
    assert [(x.step, x.value) for x in events.Scalars("test_R@1/fc6@max")] == [(0, 0.25), (1, 0.5)]
    assert [(x.step, x.value) for x in events.Scalars("loss")] == [(1, 2)]
    (image,) = events.Images("layers")
    assert np.asarray(Image.open(io.BytesIO(image.encoded_image_string))).tolist() == [[[255, 0, 0]] * 4] * 2
    (recipe,) = events.Tensors("recipe/text_summary")
    assert b"| train.epochs | `1` |" in recipe.tensor_proto.string_val[0]
    assert (tmp_path / "tb" / "mine" / "report.html").read_text() == "<html>"


def test_a_second_command_on_a_run_replaces_what_the_first_logged(tmp_path: Path) -> None:
    for _ in range(2):
        log_all(f"tensorboard:{tmp_path / 'tb'}", tmp_path)
    assert [x.step for x in read(tmp_path / "tb" / "mine").Scalars("test_R@1/fc6@max")] == [0, 1]


def test_a_folder_that_takes_no_files_is_told_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="file: .* Name another folder: --log tensorboard:DIR"):
        require_trackers([f"tensorboard:{tmp_path / 'file' / 'tb'}"])

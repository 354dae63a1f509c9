from __future__ import annotations

import re
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

import layerprobe
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow import rank_files
from tests.workflow.conftest import Silent


@pytest.fixture
def probed(run: Run) -> Run:
    """A run with features of one epoch."""
    request = ProbeRequest(layers=("pool5.3@max", "pool5.3@avg", "fc6"), epochs="2", ks=(1,), device="cpu", workers=0)
    probe(run, request, Silent())
    return run


def test_what_is_stored_of_a_run_is_read(probed: Run) -> None:
    opened = layerprobe.open_run(str(probed.folder))
    frame = opened.scores()
    assert ",".join(frame.columns) == probed.scores_file.read_text().splitlines()[0]
    assert frame["value"].tolist() == [score.value for score in probed.scores()]
    with h5py.File(probed.feature_file(2, "test")) as file:
        stored = file["features/pool5.3@avg"][()], file["features/fc6@none"][()]
        labels, ids = file["labels"][()], [name.decode() for name in file["ids"][()]]
    assert np.array_equal(opened.features(epoch=2, split="test", layer="pool5.3@avg"), stored[0])
    assert np.array_equal(opened.features(epoch=2, split="test", layer="fc6"), stored[1])
    assert opened.labels(epoch=2, split="test").tolist() == labels.tolist()
    assert list(opened.ids(epoch=2, split="test")) == ids
    assert repr(opened) == f"OpenedRun('{probed.folder}'; features of test at 2; train at 2)"


def test_what_is_not_stored_is_told_with_what_is(probed: Run) -> None:
    opened = layerprobe.open_run(probed.folder)
    message = "no features of test at epoch 1 are stored. Stored: test at 2; train at 2."
    with pytest.raises(DataError, match=re.escape(message)):
        opened.features(epoch=1, split="test", layer="fc6")
    with pytest.raises(UnknownNameError, match="unknown layer 'fc66'. Did you mean 'fc6'"):
        opened.features(epoch=2, split="test", layer="fc66")
    with pytest.raises(RecipeError, match="pool5.3 has several pools"):
        opened.features(epoch=2, split="test", layer="pool5.3")


def test_a_folder_that_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such run"):
        layerprobe.open_run(tmp_path / "absent")


def test_a_frame_without_pandas_says_how_to_get_it(probed: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(EnvironmentFault, match="needs pandas, which is not installed. Install it: pip install pandas"):
        layerprobe.open_run(probed.folder).scores()


def test_a_run_with_a_link_to_the_features_of_another_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    run = Run(tmp_path / "netA")
    run.write(recorded(rank_files.RECORD))
    (run.folder / "features").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a link below a run's folder is not followed"):
        layerprobe.open_run(run.folder)

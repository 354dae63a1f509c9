from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.cli import main
from layerprobe.recipe.overrides import Overrides
from layerprobe.workflow.manage import demo as module
from tests.workflow.manage.test_demo import SMALL


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "OVERRIDES", Overrides(settings=(*module.OVERRIDES.settings, *SMALL)))


def test_the_demo_begins_with_the_choice_and_ends_with_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["layerprobe", "demo", "--cache", "mine"])
    with pytest.raises(SystemExit) as caught:
        main()
    out, err = capsys.readouterr()
    advice, report = out.splitlines()
    assert caught.value.code == 0
    assert advice.partition(": ")[0] == Path(report).parent.name
    assert "Switch? Inconclusive, so keep fc6: 4 validation classes are too few" in advice
    assert Path(report).is_file()
    assert err.splitlines()[0].startswith("training a VGG16-BN on 60 classes of generated characters; ")
    hint = err.splitlines()[-1].partition("    # ")[0]
    assert hint.startswith("  layerprobe train quick --data folder:DIR ")
    rng = np.random.default_rng(0)
    for label in range(16):
        Path("own", f"{label:02}").mkdir(parents=True)
        for i in range(4):
            Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(Path("own", f"{label:02}", f"{i}.png"))
    monkeypatch.setattr(sys, "argv", shlex.split(hint.replace("DIR", "own")))
    with pytest.raises(SystemExit) as trained:
        main()
    assert trained.value.code == 0
    capsys.readouterr()

    monkeypatch.setattr(sys, "argv", ["layerprobe", "demo", "--cache", "mine", "--json", "--quiet"])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    values = json.loads(out)
    assert (values["report"], err) == (report, "")
    assert f"{values['run']}: " == advice[: len(values["run"]) + 2]
    assert values["choice"]["chosen"]["split"] == "validation"

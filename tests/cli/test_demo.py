from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

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
    advice, verdict, report = out.splitlines()
    assert caught.value.code == 0
    assert advice.partition(": ")[0] == Path(report).parent.name
    assert "Switch? " in advice
    assert verdict.startswith(("Which layer exactly? ", "The candidate for more classes is "))
    assert Path(report).is_file()
    assert err.splitlines()[0].startswith("training a VGG16-BN on 60 classes of generated characters; ")
    assert err.splitlines()[-1] == "  layerprobe train netA --data folder:DIR --cache mine"

    monkeypatch.setattr(sys, "argv", ["layerprobe", "demo", "--cache", "mine", "--json", "--quiet"])
    with pytest.raises(SystemExit):
        main()
    out, err = capsys.readouterr()
    values = json.loads(out)
    assert (values["report"], err) == (report, "")
    assert f"{values['run']}: " == advice[: len(values["run"]) + 2]
    assert values["choice"]["chosen"]["split"] == "validation"

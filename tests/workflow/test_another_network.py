"""The line of docs/how-to/train.md for another network, and the probe that it suggests, as a user types them."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from layerprobe.cli import main

SMALL = (
    "data.image_size=32", "net.fc=[8]", "train.epochs=1", "train.batch_size=8", "train.images_per_class=2",
)  # fmt: skip


def test_another_network_is_trained_and_probed_as_the_readme_says(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[str, str]:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        assert caught.value.code == 0, err
        return out, err

    settings = [word for setting in ("net.name=resnet50", *SMALL) for word in ("--set", setting)]
    _, told = run("train", "netA", "--data", f"folder:{images}", "--device", "cpu", *settings)
    suggested = told.splitlines()[-1].removeprefix("next: ")
    out, _ = run(*shlex.split(suggested)[1:], "--epochs", "last", "--json")
    scores = json.loads(out)["scores"]
    assert list(dict.fromkeys(s["layer"] for s in scores))[-3:] == ["layer4.2", "pool5", "fc6"]
    (record,) = (json.loads(path.read_text()) for path in tmp_path.glob("cache/*/run.json"))
    assert record["recipe"]["net"]["pool"] is None  # ResNet's own, not the max of the recipe's VGG
    assert record["layer_order"][-3:] == ["layer4.2", "pool5", "fc6"]

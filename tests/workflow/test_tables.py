"""Tables through the whole program: the numbers of the same images in folders."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from layerprobe.data import pixel_cache
from layerprobe.system.errors import DataError
from layerprobe.workflow.manage.data import check_data
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Make = Callable[..., TrainRequest]
PLACES = [(0, 0, 20, 20), (20, 0, 40, 20), (0, 20, 20, 40), (25, 20, 40, 40)]  # left, top, right, bottom


@pytest.fixture
def table(images: Path, tmp_path: Path) -> Path:
    """The 32 images in eight photos of four boxes, of which each shows four classes; `images` then has the crops."""
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = []
    for photo in range(8):
        sheet = Image.new("RGB", (40, 40))
        for place, (left, top, right, bottom) in enumerate(PLACES):
            crop = images / f"class{(photo + place) % 4 + photo // 4 * 4}/{photo % 4}.png"
            with Image.open(crop) as whole:
                cut = whole.crop((0, 0, right - left, bottom - top))
            cut.save(crop)
            sheet.paste(cut, (left, top))
            label = crop.parent.name
            rows.append((label, crop.name, f"{photo}.png", "test" if label >= "class4" else "train", *PLACES[place]))
        sheet.save(folder / f"{photo}.png")
    with (folder / "t.csv").open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("label", "path", "split", "x_1", "y_1", "x_2", "y_2"))
        writer.writerows((row[0], *row[2:]) for row in sorted(rows))
    return folder / "t.csv"


def results(run: Run) -> tuple[dict[str, bytes], list[tuple[object, ...]]]:
    """Stored features and scores, to the bit."""
    probe(run, ProbeRequest(layers=("pool1.2", "fc6"), device="cpu", workers=0, metrics=("mAP",)), Silent())
    features: dict[str, bytes] = {}
    for path in sorted(run.folder.glob("features/*.h5")):
        with h5py.File(path) as file:
            features |= {
                f"{path.name}/{layer}": np.asarray(values).tobytes() for layer, values in file["features"].items()
            }
    return features, [(s.epoch, s.split, s.metric, str(s.ranked), s.value) for s in run.scores()]


@pytest.mark.parametrize("limit", [pixel_cache._LIMIT, 0], ids=["in memory", "in the cache"])
def test_boxes_give_the_numbers_of_their_crops(
    request_for: Make, table: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", limit)
    listener = Silent()
    boxes = train(request_for("data.name=csv", f"data.root={table}", "train.epochs=1", run="boxes"), listener)
    assert "note: images cropped to x_1,y_1,x_2,y_2: 32 of 32" in listener.heard
    assert boxes.read().notes == ("images cropped to x_1,y_1,x_2,y_2: 32 of 32",)
    crops = train(request_for("train.epochs=1", run="crops"), Silent())
    features, scores = results(boxes)
    assert len(features) > 3
    assert (features, scores) == results(crops)
    assert not any("cropped" in note for score in boxes.scores() for note in score.notes)


def test_other_boxes_are_other_images(request_for: Make, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 0)
    settings = ("data.name=csv", f"data.root={table}", "train.epochs=0")
    run = train(request_for(*settings, run="one"), Silent())
    before = results(run)[0]
    table.write_text(table.read_text().replace("0,0,20,20", "0,0,19,20"))
    assert results(train(request_for(*settings, run="two"), Silent()))[0] != before
    with pytest.raises(DataError, match="images"):
        probe(run, ProbeRequest(layers=("fc6",), device="cpu", workers=0), Silent())


def test_a_box_outside_its_image_is_named_before_training_and_by_the_check(request_for: Make, table: Path) -> None:
    table.write_text(table.read_text().replace("25,20,40,40", "25,20,40,41", 1))
    with pytest.raises(DataError, match=r"photos/1.png: the box from 25,20 to 40,41 leaves the image of 40x40 pixels"):
        train(request_for("data.name=csv", f"data.root={table}"), Silent())
    checked = check_data(f"csv:{table}", Silent(), workers=0)
    assert [(finding.kind, finding.id) for finding in checked.errors] == [("box", "1.png#25-20-40-41")]
    assert checked.notes == ("images cropped to x_1,y_1,x_2,y_2: 32 of 32",)


def test_a_table_of_a_spreadsheet_gives_the_numbers_of_the_plain_one(request_for: Make, images: Path) -> None:
    rows = [("path", "label", "split")]
    rows += [(f"class{c}/{i}.png", f"class{c}", "train" if c < 4 else "test") for c in range(8) for i in range(4)]
    (images / "plain.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    text = "".join(";".join(row) + "\r\n" for row in rows).replace("/", "\\").replace("path", "Path")
    (images / "sheet.csv").write_bytes(text.encode("utf-16"))
    plain, sheet = (
        results(
            train(request_for("data.name=csv", f"data.root={images}/{name}.csv", "train.epochs=0", run=name), Silent())
        )
        for name in ("plain", "sheet")
    )
    assert plain == sheet

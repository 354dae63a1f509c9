from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.decomposition import PCA

from benchmarks.service import png, saved
from layerprobe import load_encoder, store
from layerprobe.data.images import read_image as read_as_probe
from layerprobe.data.loading import plain_batches
from layerprobe.encoder import example
from layerprobe.encoder.example import read_image
from layerprobe.ranking.index import load_index
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.errors import DataError, EnvironmentFault, InterruptedRun, LayerprobeError, NumericError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.network_input import OwnInput
from layerprobe.values.records import RunRecord
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.export.export_run import (
    LayerOfRun,
    export_run,
    image_input,
    image_shape,
    layer_to_export,
    require_exportable,
)
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import Written, export_lines
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from tests.workflow import selection_runs
from tests.workflow.conftest import Silent
from tests.workflow.export.conftest import BITS, CODES, HALVES, PARTIALLY_WHITENED, WITH_CLASSES

Export = Callable[..., Written]
CONCATENATED = RankedLayer(LayerKey("c1+c3", "max"), PARTIALLY_WHITENED, "cosine")


def probed_features(run: Run, ranked: RankedLayer) -> tuple[NDArray[np.float32], list[str]]:
    """What the probe searched of the test images, and their names."""
    features, _ = StoredSearch(run, 1, "test", torch.device("cpu")).features(ranked)
    return features.values.numpy(), list(features.ids)  # type: ignore[union-attr] # in memory


def test_every_format_is_written_and_checked_on_test_images(exported: Written) -> None:
    assert list(exported.files) == ["map.npz", "model.pt2", "model.onnx", "example.py"]
    assert exported.checked == "25 test images against the probe's features"
    assert [agreement.compared > 20 for agreement in exported.check.values()] == [True] * 3
    assert sorted(path.name for path in exported.folder.iterdir()) == sorted([*exported.files, "export.json"])


def test_export_json_says_what_it_is(exported: Written) -> None:
    found = json.loads((exported.folder / "export.json").read_text())
    named = {key: found[key] for key in ("schema", "source", "run", "epoch", "layer", "pool", "post_processing", "dim")}
    assert named == {
        "schema": 2, "source": "lenet", "run": "tiny", "epoch": 1, "layer": "c1+c3", "pool": "max",
        "post_processing": PARTIALLY_WHITENED, "dim": 6,
    }  # fmt: skip
    assert (found["name"], found["fitted_on"]) == (f"tiny#1:c1+c3@max/{PARTIALLY_WHITENED}", "train")
    assert found["map"]["steps"] == ["l2 of parts", "l2", "projection", "l2"]
    assert (found["input"]["size"], found["input"]["channels"], found["input"]["invert"]) == ([28, 28], 3, True)
    assert found["versions"].keys() == {"layerprobe", "numpy", "torch", "onnx", "onnxruntime"}


@pytest.mark.parametrize("name", [example.GRAPH, example.ONNX])
def test_a_file_gives_the_features_of_the_probe(exported: Written, probed: Run, folder: Path, name: str) -> None:
    values, ids = probed_features(probed, CONCATENATED)
    export = json.loads((exported.folder / "export.json").read_text())
    encode = (example.load_graph if name == example.GRAPH else example.load_onnx)(exported.folder / name)
    pixels = np.stack([example.read_image(folder / "images" / one, export["input"]) for one in ids])
    np.testing.assert_allclose(encode(pixels), values, atol=1e-5)


def test_example_py_prints_the_features_of_a_file_without_layerprobe(
    exported: Written, probed: Run, folder: Path, tmp_path: Path
) -> None:
    values, ids = probed_features(probed, CONCATENATED)
    (tmp_path / "layerprobe.py").write_text("raise SystemExit('layerprobe was imported')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, str(exported.folder / "example.py"), str(folder / "images" / ids[3])]
    shown = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert (shown.stderr, shown.stdout.count("\n")) == ("", 1)
    np.testing.assert_allclose(json.loads(shown.stdout), values[3], atol=1e-5)


@pytest.mark.parametrize("chain", [PARTIALLY_WHITENED, WITH_CLASSES])
def test_the_map_is_used_by_numpy_alone(export: Export, probed: Run, chain: str) -> None:
    written = export(f"c3/{chain}")
    raw, _ = probed_features(probed, RankedLayer(LayerKey("c3", "max"), "none", "cosine"))
    values, _ = probed_features(probed, RankedLayer(LayerKey("c3", "max"), chain, "cosine"))
    steps = json.loads((written.folder / "export.json").read_text())["map"]["steps"]
    assert steps == ["l2", "projection", "l2"]
    stored = np.load(written.folder / "map.npz")
    unit = raw / np.linalg.norm(raw.astype(float), axis=1, keepdims=True)
    found = (unit - stored["mean.1"]) @ stored["matrix.1"]
    np.testing.assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), values, atol=1e-6)


def test_bits_are_packed(export: Export, probed: Run) -> None:
    written = export(f"fc6/{BITS}", "pt2")
    assert (written.name, written.dim, written.post_processing) == (f"tiny#1:fc6/{BITS}", 6, BITS)
    values, _ = probed_features(probed, RankedLayer(LayerKey("fc6", "none"), BITS, "hamming"))
    assert (written.check["model.pt2"].difference, values.shape) == (0, (25, 1))
    assert export_lines(written)[0].startswith(f"tiny#1:fc6/{BITS}: 6 bits, 1 byte an image")


@pytest.mark.parametrize(("chain", "number", "size"), [(CODES, "int8", 6), (HALVES, "float16", 12)])
def test_numbers_of_fewer_bits_are_exported_as_such_and_read_by_numpy_alone(
    chain: str, number: str, size: int, export: Export, probed: Run, folder: Path, tmp_path: Path
) -> None:
    written = export(f"c3/{chain}", "npz", "pt2", "onnx")
    assert export_lines(written)[0].startswith(f"tiny#1:c3@max/{chain}: 6 {number} numbers, {size} bytes an image")
    assert all(checked.difference < 0.01 for checked in written.check.values())
    assert export_lines(written)[-1].endswith(" % of numbers differ, all 150 within their rounding")
    values, ids = probed_features(probed, RankedLayer(LayerKey("c3", "max"), chain, "cosine"))
    raw, _ = probed_features(probed, RankedLayer(LayerKey("c3", "max"), "none", "cosine"))
    code = "import sys, json, numpy, example; steps = json.load(open('export.json'))['map']['steps']"
    code += "; found = example.load_map(example.Path('map.npz'), steps)(numpy.load(sys.argv[1]))"
    code += "; assert 'torch' not in sys.modules and 'layerprobe' not in sys.modules; numpy.save(sys.argv[2], found)"
    np.save(tmp_path / "raw.npy", raw)
    command = [sys.executable, "-c", code, str(tmp_path / "raw.npy"), str(tmp_path / "found.npy")]
    subprocess.run(command, cwd=written.folder, env=os.environ | {"PYTHONPATH": ""}, check=True)
    found = np.load(tmp_path / "found.npy")
    assert found.dtype == number
    assert (found == values).mean() > 0.99  # a number may be nearly midway between two
    encoder = load_encoder(written.folder)
    encoded = encoder(np.stack([example.read_image(folder / "images" / name, encoder.export["input"]) for name in ids]))
    assert encoded.dtype == number
    assert (encoded == values).mean() > 0.99


@pytest.mark.parametrize("chain", [CODES, HALVES])
def test_an_index_of_fewer_bits_holds_float32_and_finds_by_the_cosine(
    chain: str, probed: Run, faiss: None, tmp_path: Path
) -> None:
    request, listener = ExportRequest(tmp_path / "out", ("npz",), layer=f"c3/{chain}", index="flat"), Silent()
    written = export_run(layer_to_export(probed, request, listener), request, listener)
    assert "index.faiss holds these vectors as float32, 4 bytes a number" in listener.heard
    raw, ids = probed_features(probed, RankedLayer(LayerKey("c3", "max"), "none", "cosine"))
    codes = load_encoder(written.folder)(raw)
    numbers = codes.astype(np.float64)
    unit = numbers / np.linalg.norm(numbers, axis=1, keepdims=True)
    cosines = unit @ unit.T
    for queries in (codes, example.searchable(codes, "cosine")):
        found, names = load_index(written.folder).search(queries, 25)
        np.testing.assert_allclose(found, -np.sort(-cosines, axis=1), atol=1e-6)
        assert all(name[0] == own for name, own in zip(names, ids, strict=True))


def test_an_index_holds_the_vectors_that_the_encoder_gives(probed: Run, faiss: None, tmp_path: Path) -> None:
    request = ExportRequest(tmp_path / "out", ("npz",), layer=f"c3/{PARTIALLY_WHITENED}", index="flat")
    written = export_run(layer_to_export(probed, request, Silent()), request, Silent())
    assert list(written.files) == ["map.npz", "example.py", "index.faiss", "index.json"]
    raw, ids = probed_features(probed, RankedLayer(LayerKey("c3", "max"), "none", "cosine"))
    index = load_index(written.folder)
    found, names = index.search(load_encoder(written.folder)(raw), 1)
    assert [name for (name,) in names] == ids == list(index.ids)
    np.testing.assert_allclose(found, 1, atol=1e-6)
    (written.folder / "index.json").write_text("{}")
    with pytest.raises(DataError, match=r"index\.json: has changed"):
        load_encoder(written.folder)


def test_an_index_is_the_same_of_features_on_disk(
    probed: Run, faiss: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = ExportRequest(tmp_path / "a", ("npz",), layer=f"c3/{PARTIALLY_WHITENED}", index="flat")
    made = [export_run(layer_to_export(probed, request, Silent()), request, Silent())]
    monkeypatch.setattr(store.FeatureFile, "read", None)  # a layer whole
    request = replace(request, out=tmp_path / "b", memory=1)
    made.append(export_run(layer_to_export(probed, request, Silent()), request, Silent()))
    assert len({(written.folder / "index.faiss").read_bytes() for written in made}) == 1


def test_an_index_that_cannot_be_built_is_refused_before_the_network_is_recorded(
    probed: Run, faiss: None, tmp_path: Path
) -> None:
    request = ExportRequest(tmp_path / "out", layer=f"fc6/{BITS}", index="hnsw")
    listener = Silent()
    with pytest.raises(LayerprobeError, match="an index hnsw holds float vectors, and binary codes are bits"):
        export_run(layer_to_export(probed, request, listener), request, listener)
    assert not any("recording" in line for line in listener.heard)
    assert list(tmp_path.iterdir()) == []


def test_ivfpq_is_trained_on_train_where_nothing_else_is_left(
    probed: Run, faiss: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("layerprobe.ranking.index._PER_LIST", 5)
    request = ExportRequest(tmp_path / "out", ("npz",), layer="fc6", index="ivfpq")
    listener = Silent()
    written = export_run(layer_to_export(probed, request, listener), request, listener)
    about = json.loads((written.folder / "index.json").read_text())
    assert (about["kind"], about["parameters"]["training"], about["rows"]) == ("ivfpq", 25, 25)
    assert about["facts"] == {"name": "tiny#1:fc6"}


def test_a_map_of_the_gallery_is_named_so(export: Export) -> None:
    written = export(f"c3/{PARTIALLY_WHITENED}@gallery")
    assert (written.name, written.fitted_on) == (f"tiny#1:c3@max/{PARTIALLY_WHITENED}@gallery", "test")


def test_a_choice_within_folds_without_training_classes_is_fitted_on_what_was_searched(
    export: Export, probed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gallery = export(f"c3/{PARTIALLY_WHITENED}@gallery")
    monkeypatch.setattr(Run, "read", without_train(probed, "test"))
    layer = LayerOfRun(probed, 1, "test", RankedLayer(LayerKey("c3", "max"), PARTIALLY_WHITENED, "cosine"))
    written = export_run(layer, ExportRequest(tmp_path / "chosen", ("npz",)), Silent())
    assert written.fitted_on == "test"
    assert (written.folder / "map.npz").read_bytes() == (on_gallery.folder / "map.npz").read_bytes()


def without_train(run: Run, *splits: str) -> Callable[[Run], RunRecord]:
    """`Run.read` of a run of these splits alone."""
    record = run.read()
    return lambda _: replace(record, manifests={split: record.manifests[split] for split in splits})


def test_a_map_with_classes_says_how_many_it_is_fitted_with(
    export: Export, probed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = export(f"c3/{WITH_CLASSES}")
    assert written.fitted_on == json.loads((written.folder / "export.json").read_text())["fitted_on"]
    assert export_lines(written)[0].endswith("24 bytes an image; map fitted on train (5 classes)")
    layer = LayerOfRun(probed, 1, "test", RankedLayer(LayerKey("c3", "max"), WITH_CLASSES, "cosine"))
    monkeypatch.setattr(Run, "read", without_train(probed, "test"))
    assert export_run(layer, ExportRequest(tmp_path / "t", ("npz",)), Silent()).fitted_on == "test (5 classes)"


@pytest.mark.parametrize("chain", ["pca:3", "lwhiten:3:1"])
def test_without_training_images_a_map_is_fitted_on_the_validation_images_that_chose_it(
    chain: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    values = {split: rng.normal(size=(80, 4)).astype(np.float32) for split in ("validation", "test")}
    ranks = {split: {selection_runs.FC6: np.ones(80)} for split in values}
    run = selection_runs.write_run(
        tmp_path, "one", ranks, features={split: {"fc6@none": rows} for split, rows in values.items()}
    )
    layer = LayerOfRun(run, 2, "test", replace(selection_runs.FC6, post_processing=chain))
    written = export_run(layer, ExportRequest(tmp_path / "out", ("npz",)), Silent())
    assert written.fitted_on.startswith("validation")
    found = load_encoder(written.folder)(values["test"])
    # with the covariance within classes shrunk to the identity, learned whitening is PCA but for the lengths
    expected = PCA(3).fit(values["validation"].astype(float)).transform(values["test"].astype(float))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-5)  # an axis has no sign


def test_without_a_layer_choose_says_which(probed: Run, export: Export) -> None:
    selected = choose_runs([probed], ChooseRequest(), Silent()).selected
    assert export(None).name.endswith(f":{selected.name}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"from_python": True}, "measured from Python, and its network is not stored"), ({"members": ("a",)}, "ensemble")],
)
def test_a_run_without_one_network_exports_its_map_alone(probed: Run, change: dict[str, object], reason: str) -> None:
    record = replace(probed.read(), **change)  # type: ignore[arg-type] # one field each
    with pytest.raises(LayerprobeError, match=f"{reason}.*--format npz"):
        require_exportable(record, probed, ExportRequest(Path("out")))
    require_exportable(record, probed, ExportRequest(Path("out"), ("npz",)))


def test_missing_features_are_told_with_the_command(export: Export, probed: Run) -> None:
    path = probed.feature_file(1, "train")
    aside = path.rename(path.with_name("aside"))
    try:
        with pytest.raises(DataError, match="not stored, or have changed. Run .* --layers c3@max --post l2.whiten"):
            export(f"c3/{PARTIALLY_WHITENED}")
    finally:
        aside.rename(path)


def test_without_its_images_it_is_checked_on_random_ones(export: Export, folder: Path) -> None:
    moved = (folder / "images").rename(folder / "elsewhere")
    try:
        written = export("c3", "pt2")
    finally:
        moved.rename(folder / "images")
    assert written.checked.startswith("64 random images against the network itself, as ")
    assert written.check["model.pt2"].compared > 0


def test_a_layer_that_is_stored_as_float16_is_checked_against_its_network(probed: Run, tmp_path: Path) -> None:
    run = Run(Path(shutil.copytree(probed.folder.parent, tmp_path / "cache")) / probed.name)
    half = ProbeRequest(layers=("c1", "c3", "fc6"), splits=("test",), ks=(1,), device="cpu", workers=0, epochs="1")
    probe(run, replace(half, store="float16"), Silent())
    for formats, checked in ((("npz",), "25 test images against"), (("pt2",), "64 random images against the network")):
        request = ExportRequest(tmp_path / formats[0], formats, layer="c1")
        written = export_run(layer_to_export(run, request, Silent()), request, Silent())
        assert written.checked.startswith(checked)
    assert "as the probe's features are stored as float16" in written.checked


def test_a_file_that_differs_is_not_exported(export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "load_map", lambda *_: lambda features: np.ones((len(features), 16), np.float32))
    with pytest.raises(NumericError, match=r"map\.npz gives features whose cosine .* Nothing was exported"):
        export("c3")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(shutil, "copyfile", lambda *_: os.kill(os.getpid(), number))
    with pytest.raises(InterruptedRun) as caught:
        export("c3")
    assert caught.value.exit_code == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_and_leaves_nothing(
    export: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(EnvironmentFault, match="disk full"):
        export("c3")
    assert list(tmp_path.iterdir()) == []


def test_an_export_is_replaced_only_by_force(export: Export) -> None:
    first = export("c3")
    with pytest.raises(LayerprobeError, match="it exists already"):
        export("c1")
    assert load_encoder(first.folder).export["layer"] == "c3"
    assert load_encoder(export("c1", force=True).folder).export["layer"] == "c1"


@pytest.mark.parametrize(
    ("name", "epoch", "message"),
    [
        ("c3/random:4x2", None, "random:4x2 is a mean over 2 random draws.*such as random:4"),
        ("other:c3", None, "--layer other:c3: the run is tiny. Name other as the run"),
        ("tiny#0:c3", 1, "--layer tiny#0:c3 and --epoch 1 name two epochs"),
        ("c?", None, "names 2 layers. Name one, such as c1@max"),
    ],
)
def test_a_name_of_no_single_layer_of_the_run_is_refused(
    export: Export, name: str, epoch: int | None, message: str
) -> None:
    with pytest.raises(LayerprobeError, match=message):
        export(name, epoch=epoch)


def test_an_epoch_may_be_named_twice(export: Export) -> None:
    assert export("tiny#1:c3", epoch=1).name == "tiny#1:c3@max"


def test_images_are_read_as_the_probe_reads_them(exported: Written, tmp_path: Path) -> None:
    how = json.loads((exported.folder / "export.json").read_text())["input"]
    Image.new("RGBA", (10, 20), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (example.read_image(tmp_path / "clear.png", how) == 255).all()


def bad_images(folder: Path) -> list[Path]:
    """Files that the probe refuses."""
    for mode in ("F", "I"):
        Image.new(mode, (9, 9)).save(folder / f"{mode}.tiff")
    for width, height in ((1, 1001), (1001, 1), (9450, 9450), (14_000, 14_000), (2**31 - 1, 2**31 - 1)):
        (folder / f"{width}x{height}.png").write_bytes(png(width, height))
    (folder / "drawing.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    (folder / "cut.jpg").write_bytes(saved("RGB", "JPEG")[:300])
    (folder / "palette.png").write_bytes(png(9, 9, 8, 3, rows=9))  # without one
    (folder / "empty.jpg").touch()
    return [*folder.iterdir()]


def test_example_py_refuses_what_the_probe_refuses(exported: Written, tmp_path: Path) -> None:
    how = json.loads((exported.folder / "export.json").read_text())["input"]
    for path in bad_images(tmp_path):
        with pytest.raises(DataError):
            read_as_probe(path)
        with pytest.raises(ValueError, match="cannot be read|can be read"):
            read_image(io.BytesIO(path.read_bytes()), how)


def test_example_py_names_a_file_that_it_cannot_read(
    exported: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example, "encoder", lambda *_: None)  # slow to load
    Image.new("I", (9, 9)).save(tmp_path / "deep.tiff")
    for name in ("deep.tiff", "gone.png"):
        with pytest.raises(SystemExit, match=f"{name}: .*(32-bit pixels have no agreed range|No such file)"):
            example.main(exported.folder, [str(tmp_path / name)])


OWN = (
    OwnInput(16),
    OwnInput(16, 19, "bicubic"),
    OwnInput(16, 19, "lanczos", crop_rounding="down"),
    OwnInput(16, 21, "box", squeezed=True),
    OwnInput((16, 12)),
    OwnInput((16, 12), (19, 15), "bicubic"),
    OwnInput((16, 12), (19, 15), squeezed=True),
)


@pytest.fixture
def kinds(images: Path) -> Path:
    """Images of several sizes, modes and orientations among those of noise."""
    rng = np.random.default_rng(0)
    sizes = [(40, 23), (17, 64), (16, 16)]
    for i, (width, height) in enumerate(sizes):
        pixels = rng.integers(0, 256, (height, width, 4), dtype=np.uint8)
        Image.fromarray(pixels).save(images / "class0" / f"alpha{i}.png")
        turned = Image.Exif()
        turned[0x0112] = 6 + i
        Image.fromarray(pixels[:, :, :3]).save(images / "class4" / f"exif{i}.jpg", exif=turned)
        Image.fromarray(pixels[:, :, :3]).save(images / "class5" / f"turned{i}.tiff", tiffinfo={0x0112: 3 + i})
        Image.fromarray(pixels[:, :, 0].astype(np.uint16) * 200).save(images / "class1" / f"deep{i}.png")
        Image.fromarray(pixels[:, :, 0]).convert("P").save(images / "class6" / f"palette{i}.gif")
        Image.fromarray(pixels).convert("CMYK").save(images / "class7" / f"cmyk{i}.jpg")
    return images


def require_same(recipe: Recipe, root: Path, channels: int = 3) -> None:
    dataset = from_recipe.build_dataset(recipe)
    net = replace(from_recipe.build_net(recipe), channels=channels)
    how = image_input(recipe, net)
    for split in dataset.splits.values():
        pixels = np.concatenate([batch.numpy() for batch in plain_batches(split, batch_size=8, workers=0)])
        found = np.stack([read_image(root / name, how) for name in split.ids])
        expected = pixels if channels == 3 else [np.asarray(Image.fromarray(x).convert("L"))[..., None] for x in pixels]
        np.testing.assert_array_equal(found, expected)
        assert found.shape[1:] == image_shape(recipe, net)


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("data.resize=fast",),
        ("data.exif_rotation=true",),
        ("data.white=20000",),
        ("data.image_size=[20,12]",),
        ("data.transform=D1",),
        ("data.transform=D1", "data.resize=fast"),
        ("data.transform=D2",),
        ("data.transform=D3", "data.exif_rotation=true"),
    ],
    ids=" ".join,
)
def test_example_py_reads_a_file_to_the_pixels_of_the_probe(
    request_for: Callable[..., TrainRequest], kinds: Path, settings: tuple[str, ...]
) -> None:
    require_same(request_for(*settings).recipe, kinds)


@pytest.mark.parametrize("own", OWN, ids=lambda own: own.steps())
def test_so_it_does_by_a_model_s_own_transform(
    request_for: Callable[..., TrainRequest], kinds: Path, own: OwnInput
) -> None:
    recipe = request_for().recipe
    data = recipe.data.model_copy(update={"transform": "model"})
    require_same(replace(recipe, data=data, own_input=own), kinds)


def test_a_network_of_one_channel_gets_grey_pixels(request_for: Callable[..., TrainRequest], kinds: Path) -> None:
    require_same(request_for().recipe, kinds, channels=1)

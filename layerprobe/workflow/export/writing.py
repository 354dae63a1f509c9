"""The files of an export: written into a temporary folder, checked, and given their final name."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import __version__
from layerprobe.encoder import example
from layerprobe.encoder.agreement import CheckSamples, FeatureAgreement, agreement
from layerprobe.encoder.fitted_map import FittedMap, fitted_map
from layerprobe.encoder.graph import Parts, apply_map, record_graph, save_graph, save_onnx
from layerprobe.encoder.manifest import write_manifest
from layerprobe.measure.index_costs import Searched
from layerprobe.post_processing.chain import Chain, parse_chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.post_processing.quantised import before_rounding
from layerprobe.ranking.index import load_index, write_index
from layerprobe.system.errors import NumericError
from layerprobe.system.files import folder_written_whole
from layerprobe.system.progress import Listener, stoppable
from layerprobe.system.wording import as_size
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.export.request import NPZ, ONNX, PT2, ExportRequest

Encode = Callable[[NDArray[Any]], NDArray[Any]]
CHECKED = 64  # images
_MEGABYTE = 1_000_000
_EXAMPLE = "example.py"
_PLURALS = {"float32": "numbers", "float16": "float16 numbers", "int8": "int8 numbers", "bit": "bits"}
_PACKAGES = {PT2: ("torch",), ONNX: ("torch", "onnx", "onnxruntime"), NPZ: ("numpy",)}


@dataclass(frozen=True, eq=False)
class Exported:
    """What is exported.

    Args:
        name: `netA#20:pool5.3@max/l2+pca:64+l2`.
        source: the network's name in a recipe, or the file of features.
        fitted_on: see `fitted_on_text`.
        finish: all that is done to pooled features.
        parts: the network; None where only the map is exported.
        how: `input` of export.json; None likewise.
        searched: the features of an index; None where none is written.
    """

    name: str
    source: str
    ranked: RankedLayer
    fitted_on: str
    finish: FittedStep
    samples: CheckSamples
    run: str | None = None
    epoch: int | None = None
    parts: Parts | None = None
    how: Mapping[str, Any] | None = None
    searched: Searched | None = None

    def facts(self, formats: tuple[str, ...], steps: FittedMap | None) -> Mapping[str, Any]:
        """What export.json says besides files and check."""
        layer = self.ranked.layer
        packages = dict.fromkeys(package for name in formats for package in _PACKAGES[name])
        return {
            "source": self.source,
            "run": self.run,
            "epoch": self.epoch,
            "name": self.name,
            "layer": layer.layer,
            "pool": layer.pool,
            "post_processing": self.ranked.post_processing,
            "fitted_on": self.fitted_on or None,
            "dim": self.samples.dim,
            "similarity": self.ranked.similarity,
            "input": self.how,
            "map": None if steps is None else {"dim": self.samples.pooled.shape[1], "steps": steps.steps},
            "versions": {"layerprobe": __version__, **{name: metadata.version(name) for name in packages}},
        }


@dataclass(frozen=True)
class Written:
    """An export on disk.

    Args:
        files: name -> bytes.
        checked: what it was checked on and against: `64 test images against the probe's features`.
        check: file -> how closely it gives the probe's features.
    """

    folder: Path
    name: str
    dim: int
    post_processing: str
    similarity: str
    fitted_on: str
    files: Mapping[str, int]
    checked: str
    check: Mapping[str, FeatureAgreement]


def fitted_on_text(chain: Chain, split: str, labels: NDArray[np.integer]) -> str:
    """`train`, `train (350 classes)` of a map that is fitted with them, or nothing where none is fitted.

    Args:
        labels: of the images of the split.
    """
    if not chain.fits:
        return ""
    return f"{split} ({len(np.unique(labels)):,} classes)" if chain.needs_labels else split


def sample_rows(count: int) -> NDArray[np.int64]:
    """At most 64 of so many rows, at equal distances."""
    return np.linspace(0, count - 1, min(CHECKED, count)).round().astype(np.int64)


def make_samples(
    name: str, pooled: NDArray[np.float32], images: NDArray[np.uint8] | None, similarity: str, finish: FittedStep
) -> CheckSamples:
    """Pooled features, with those that the map makes of them."""
    features, numbers = torch.from_numpy(pooled), before_rounding(finish)
    before = None if numbers is None else numbers(features.double()).numpy()
    return CheckSamples(name, images, pooled, apply_map(finish, features).numpy(), similarity, before)


def write(exported: Exported, request: ExportRequest, listener: Listener) -> Written:
    """Make the folder.

    Raises:
        LayerprobeError: torch.export cannot record the network, or numpy apply the map.
        NumericError: a file does not give the probe's features; nothing is left.
    """
    formats = tuple(name for name in request.formats if exported.parts is not None or name == NPZ)
    with stoppable(at_once=True), folder_written_whole(request.out, replace=request.force) as aside:
        steps = fitted_map(exported.finish) if NPZ in formats else None
        index = _write_index(exported, request, aside)  # first: it refuses bits and few images
        if index and exported.samples.features.dtype in (np.float16, np.int8):
            listener.say(f"{index[0]} holds these vectors as float32, 4 bytes a number")
        encoders = _write_encoders(exported, formats, steps, aside, listener)
        shutil.copyfile(example.__file__, aside / _EXAMPLE)
        check = {name: _check_encoder(name, encode, exported.samples) for name, encode in encoders.items()}
        facts = {**exported.facts(formats, steps), "check": {"on": exported.samples.name, "files": check}}
        manifest = write_manifest(aside, facts, [*encoders, _EXAMPLE, *index])
    return Written(
        request.out,
        exported.name,
        exported.samples.dim,
        exported.ranked.post_processing,
        exported.ranked.similarity,
        exported.fitted_on,
        {name: file["bytes"] for name, file in manifest["files"].items()},
        exported.samples.name,
        check,
    )


def _write_encoders(
    exported: Exported, formats: tuple[str, ...], steps: FittedMap | None, folder: Path, listener: Listener
) -> dict[str, Encode]:
    """Write the files of the formats, and read them again as functions."""
    encoders: dict[str, Encode] = {}
    if steps is not None:
        np.savez(folder / example.MAP, allow_pickle=False, **steps.arrays)
        encoders[example.MAP] = example.load_map(folder / example.MAP, steps.steps)
    if exported.parts is None or formats == (NPZ,):
        return encoders
    listener.say(f"recording the network up to {exported.ranked.layer}")
    program = record_graph(exported.parts)
    if PT2 in formats:
        save_graph(program, folder / example.GRAPH)
        encoders[example.GRAPH] = example.load_graph(folder / example.GRAPH)
    if ONNX in formats:
        save_onnx(program, folder / example.ONNX)
        encoders[example.ONNX] = example.load_onnx(folder / example.ONNX)
    return encoders


def _write_index(exported: Exported, request: ExportRequest, folder: Path) -> tuple[str, ...]:
    """Write the requested index, and return the names of its files."""
    searched = exported.searched
    if searched is None or request.index is None:
        return ()
    items = searched.items
    files = write_index(
        folder,
        cast("Any", items.values),
        cast("Any", items.ids),
        kind=request.index,
        similarity=searched.similarity,
        training=searched.training,
        facts={"name": exported.name},
    )
    load_index(folder)  # as whoever loads it does
    return tuple(file.name for file in files)


def _check_encoder(name: str, encode: Encode, samples: CheckSamples) -> FeatureAgreement:
    """Compare the features of a file with the probe's, for a batch of one image and for a batch of the others."""
    inputs = samples.pooled if name == example.MAP else samples.images
    if inputs is None:
        raise ValueError(f"{name} is checked on images")
    try:
        features = np.concatenate([encode(inputs[:1]), encode(inputs[1:])])
        return agreement(name, features, samples)
    except NumericError as error:
        fix = "Nothing was exported; probe the layer again, and report it if that does not help"
        raise NumericError(f"{error.message} (on {samples.name})", fix=fix) from error


def export_lines(written: Written) -> list[str]:
    """What was exported, its files and the result of the check, a line each."""
    chain = parse_chain(written.post_processing)
    size = chain.bytes_per_image(written.dim)
    numbers = f"{written.dim:,} {_PLURALS[chain.number]}, {size:,} byte{'' if size == 1 else 's'} an image"
    fitted = f"; map fitted on {written.fitted_on}" if written.fitted_on else ""
    sizes = {name: as_size(size) if size >= _MEGABYTE else f"{size:,} bytes" for name, size in written.files.items()}
    files = ", ".join(f"{name} ({size})" for name, size in sizes.items())
    lines = [f"{written.name}: {numbers}{fitted}", f"  {written.folder}: {files}"]
    lines.append(f"  checked on {written.checked}:")
    for name, checked in written.check.items():
        if checked.cosine is None:
            share = 100 * checked.difference
            bits = "bits differ, none of {:,} whose numbers are not near 0"
            rounded = "numbers differ, all {:,} within their rounding"
            text = f"{share:.2f} % of {(bits if chain.number == 'bit' else rounded).format(checked.compared)}"
        else:
            text = (
                f"largest difference {checked.difference:.1e}, cosine at least 1 - {1 - checked.cosine:.1e},"
                f" {checked.compared} of {checked.compared} nearest neighbours the same"
            )
        lines.append(f"    {name}: {text}")
    return lines

"""A report as one HTML file: text, styles, numbers, pictures and script inside."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from layerprobe.report.values import Gallery, GalleryMap, Report, RunPage, ShownClasses
from layerprobe.system.wording import visible
from layerprobe.values.facts import assumed_lines, run_lines, split_text
from layerprobe.values.intervals import Interval, IntervalKind, ShownKind
from layerprobe.values.layers import RankedLayer, layer_names
from layerprobe.values.scores import SPLITS, Score, is_fraction, note_text

SCHEMA = 2
_BANDS = "intervals"  # their name in the line that says why there are none
_STARTS = {b"\xff\xd8": "jpeg", b"\x89P": "png"}  # first bytes of a picture's file -> its kind


def page_data(report: Report) -> dict[str, Any]:
    """Everything that the page's script shows, as JSON has it; control characters of names are replaced.

    Numbers are those of scores.csv. Intervals of a metric are there only where all of its scores in the report have
    them of one kind, as `metrics` then says.
    """
    kinds = _kinds(report.runs)
    notes = [
        *report.notes,
        *dict.fromkeys(line for kind in kinds.values() if kind.mixed for line in kind.lines(_BANDS)),
    ]
    names = [run.name for run in report.runs]
    return {
        "schema": SCHEMA,
        "title": visible(report.title),
        "metric": report.metric,
        "notes": [visible(note) for note in notes],
        "runs": [_run(run, kinds) for run in report.runs],
        "galleries": [_gallery(gallery, names.index(gallery.run), report.runs) for gallery in report.galleries],
        "classes": None if report.classes is None else _classes(report.classes),
        "pictures": [_data_url(picture) for picture in report.pictures],
    }


def _kinds(runs: Sequence[RunPage]) -> dict[str, ShownKind]:
    """Metric -> which of its intervals are shown."""
    scores = [score for run in runs for score in run.scores]
    kinds_by_metric: dict[str, dict[IntervalKind, None]] = {score.metric: {} for score in scores}
    for score in scores:
        if score.interval:
            kinds_by_metric[score.metric][score.kind] = None
    return {metric: ShownKind.of(kinds) for metric, kinds in kinds_by_metric.items()}


def _run(run: RunPage, kinds: Mapping[str, ShownKind]) -> dict[str, Any]:
    epochs = sorted({score.epoch for score in run.scores})
    remarks: dict[str, int] = {}
    tables: dict[str, dict[str, list[Score]]] = {}
    for score in run.scores:
        tables.setdefault(score.metric, {}).setdefault(score.split, []).append(score)
    shape = {ranked: i for i, ranked in enumerate(run.layers)}, {epoch: i for i, epoch in enumerate(epochs)}
    scores = {
        metric: {
            split: _table(splits[split], shape, remarks, bands=kinds[metric].kind is not None)
            for split in sorted(splits, key=lambda name: [*SPLITS, name].index(name))
        }
        for metric, splits in tables.items()
    }
    return {
        "name": visible(run.name),
        "epochs": epochs,
        "start": run.data.start,
        "weights": visible(run.data.weights),
        "held_out": run.data.held_out,
        "names": {split: split_text(split, [run.data]) for split in SPLITS},
        "training": run.training,
        "layers": [
            {"label": visible(label)}
            | {"layer": visible(x.layer.layer), "pool": x.layer.pool}
            | {"post_processing": x.post_processing, "similarity": x.similarity}
            for label, x in zip(layer_names(run.layers), run.layers, strict=True)
        ],
        "few": list(run.few),
        "embedding": run.embedding,
        "selected": run.selected,
        "splits": {
            split: {name: getattr(facts, name) for name in ("queries", "classes", "gallery", "chance")}
            for split, facts in run.data.splits.items()
        },
        "metrics": [
            {"name": metric, "percent": is_fraction(metric), "interval": kind.text if kind else None}
            for metric, kind in ((metric, kinds[metric].kind) for metric in scores)
        ],
        "scores": scores,
        "remarks": [visible(remark) for remark in remarks],
    }


def _table(
    scores: Sequence[Score],
    shape: tuple[Mapping[RankedLayer, int], Mapping[int, int]],
    remarks: dict[str, int],
    *,
    bands: bool,
) -> dict[str, list[list[float | None]]]:
    """The numbers of a metric and split by layer and epoch, None if there is none.

    Args:
        remarks: text -> its place; new ones are added.
    """
    layers, epochs = shape
    has_ends = bands and any(score.interval for score in scores)
    names = ["value", *(["low", "high"] if has_ends else []), "note"]
    table: dict[str, list[list[float | None]]] = {name: [[None] * len(epochs) for _ in layers] for name in names}
    for score in scores:
        row, column = layers[score.ranked], epochs[score.epoch]
        table["value"][row][column] = score.value
        if has_ends:
            table["low"][row][column], table["high"][row][column] = score.low, score.high
        if notes := score.all_notes:
            table["note"][row][column] = remarks.setdefault(note_text(notes), len(remarks))
    return table


def _gallery(gallery: Gallery, run_index: int, runs: Sequence[RunPage]) -> dict[str, Any]:
    if len(gallery.items) > np.iinfo(np.int16).max:
        raise ValueError(f"a gallery shows at most 32,767 items, got {len(gallery.items)}")
    layers = list(runs[run_index].layers)
    return {
        "run": run_index,
        "split": gallery.split,
        "epochs": list(gallery.epochs),
        "layers": [layers.index(ranked) for ranked in gallery.layers],
        "items": [
            _item(item.id, item.name, picture) for item, picture in zip(gallery.items, gallery.pictures, strict=True)
        ],
        "queries": [
            {"item": query.item, "rules": [visible(rule) for rule in query.rules]} for query in gallery.queries
        ],
        "k": gallery.found.shape[-1],
        "found": _base64(gallery.found.astype("<i2").tobytes()),
        "right": _base64(gallery.right.astype(np.uint8).tobytes()),
        "notes": [visible(note) for note in gallery.notes],
        "map": None if gallery.map is None else _map(gallery.map),
    }


def _classes(shown: ShownClasses) -> dict[str, Any]:
    return {
        "rows": [
            [visible(x.name), x.images, x.a, x.b, x.difference, *_ends(x.interval), x.shrunk] for x in shown.classes
        ],
        "confusions": [
            {
                "name": visible(x.name),
                "nearest": visible(x.nearest),
                "text": x.text,
                "examples": [
                    [_item(example.image, x.name, pictures[0]), _item(example.nearest, x.nearest, pictures[1])]
                    for example, pictures in zip(x.examples, x.pictures, strict=True)
                ],
            }
            for x in shown.confusions
        ],
    }


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _item(name: str, class_name: str, picture: int) -> dict[str, Any]:
    """An image, its class, and the place of its picture, -1 for none."""
    return {"id": visible(name), "name": visible(class_name), "picture": picture}


def _map(gallery_map: GalleryMap) -> dict[str, Any]:
    """Coordinates in 65,535 steps of a square around those of a layer, 65,535 for none."""
    points = gallery_map.points
    is_present = np.isfinite(points)
    low = np.where(is_present, points, np.inf).min(2, keepdims=True)
    high = np.where(is_present, points, -np.inf).max(2, keepdims=True)
    half = ((high - low) / 2).max(3, keepdims=True)
    half = np.where(np.isfinite(half) & (half > 0), half, 1)
    with np.errstate(invalid="ignore"):
        steps = ((points - (low + high) / 2) / half + 1) * 32767
    return {
        "points": _base64(np.where(is_present, np.where(is_present, steps, 0).round(), 65535).astype("<u2").tobytes()),
        "kept": [[None if np.isnan(share) else float(share) for share in shares] for shares in gallery_map.kept],
        "chance": gallery_map.chance,
        "drawn": gallery_map.drawn,
        "total": gallery_map.total,
        "sample": gallery_map.sample,
    }


def _data_url(picture: bytes) -> str:
    kind = _STARTS.get(picture[:2])
    if kind is None:
        raise ValueError(f"a picture is a JPEG or PNG file, got {picture[:8]!r}")
    return f"data:image/{kind};base64,{_base64(picture)}"


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


_HERE = Path(__file__).parent
_STYLES = ("page.css", "gallery.css")
_SCRIPTS = (
    "state.js",
    "readout.js",
    "charts.js",
    "map.js",
    "sorting.js",
    "table.js",
    "gallery.js",
    "projection.js",
    "classes.js",
    "start.js",
)  # in this order


def render(report: Report) -> str:
    """The page of a report.

    What the page may do is written in it: it runs one script, its own, and loads nothing from anywhere. Text of users
    is escaped, and control characters in it are replaced.

    Returns:
        HTML.
    """
    script = _join_files(_SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    assumed = list(dict.fromkeys(line for facts in report.data.values() for line in assumed_lines(facts)))
    template = _environment().get_template("page.html.j2")
    return template.render(
        report=report,
        data=page_data(report),
        facts=run_lines(report.data) + assumed,
        style=Markup(_join_files(_STYLES)),
        script=Markup(script),
        digest=digest,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Sorted keys would put test before train.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    environment.filters["visible"] = lambda text: visible(text, keep="\n")
    return environment


def _join_files(names: tuple[str, ...]) -> str:
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)

"""Hashes of a run's images: `manifests` of names, classes and sizes; `contents` of names, classes and contents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.data.splits import Dataset, contents_sha256, manifest_sha256
from layerprobe.system.errors import DataError
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.runs import Run


def manifests_of(dataset: Dataset) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """`manifests` and `contents` of a data set whose images are hashed."""
    splits, names = dataset.splits, dataset.class_names
    return (
        {name: manifest_sha256(split, names) for name, split in splits.items()},
        {name: contents_sha256(split, names) for name, split in splits.items()},
    )


def settled_splits(run: Run, splits: Sequence[str], *, trains: bool) -> list[str]:
    """The splits whose images may be no others: all once a layer was ranked, before that those that it trains on."""
    return [name for name in splits if run.is_measured or (trains and name == "train")]


def require_same_images(record: RunRecord, dataset: Dataset, splits: Sequence[str], *, fix: str) -> None:
    """Check that the images of some splits are those of a run; a split that its record does not have passes."""
    manifests, contents = manifests_of(dataset)
    for name in splits:
        if record.contents.get(name) in (None, contents[name]):
            continue
        same_by_size = record.manifests.get(name) == manifests[name]
        difference = "the same names and sizes, other contents" if same_by_size else "other names, classes or sizes"
        raise DataError(
            f"the {name} images are not those of the run: {difference}",
            file=record.data.get("root") or record.data["name"],
            fix=fix,
        )


def have_other_images(a: RunRecord, b: RunRecord, split: str) -> bool:
    """Whether a split of two runs is known to have other images or classes.

    Images without files are not compared between recipes: their size or scale may be that of the network.
    """
    if a.experiment != b.experiment and not (a.data.get("root") and b.data.get("root")):
        return False
    contents = {record.contents.get(split) for record in (a, b)}
    return None not in contents and len(contents) > 1

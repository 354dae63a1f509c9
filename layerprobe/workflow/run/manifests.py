"""By which hashes a run knows its images: of names, classes and sizes, and of names, classes and contents.

`manifests` of run.json has the former, `contents` the latter, to which features and ranks belong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from layerprobe.data.splits import Dataset, contents_sha256, manifest_sha256
from layerprobe.system.errors import DataError
from layerprobe.values.records import RunRecord


def manifests_of(dataset: Dataset) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """`manifests` and `contents` of a data set whose images are hashed."""
    splits, names = dataset.splits, dataset.class_names
    return (
        {name: manifest_sha256(split, names) for name, split in splits.items()},
        {name: contents_sha256(split, names) for name, split in splits.items()},
    )


def require_same_images(record: RunRecord, dataset: Dataset, splits: Sequence[str], *, fix: str) -> None:
    """Check that the images of some splits are those that a run began with; a split that it does not know passes."""
    manifests, contents = manifests_of(dataset)
    for name in splits:
        if record.contents.get(name) in (None, contents[name]):
            continue
        same_by_size = record.manifests.get(name) == manifests[name]
        what = "the same names and sizes, another content" if same_by_size else "other names, classes or sizes"
        raise DataError(
            f"the {name} images are not those the run began with: {what}",
            file=record.data.get("root") or record.data["name"],
            fix=fix,
        )


def have_other_images(one: RunRecord, other: RunRecord, split: str) -> bool:
    """Whether a split of two runs is known to hold other images or classes.

    Images that come from no files are not compared between two recipes: they may be drawn at the size, or given in the
    scale, of a network.
    """
    if one.experiment != other.experiment and not (one.data.get("root") and other.data.get("root")):
        return False
    known = {record.contents.get(split) for record in (one, other)}
    return None not in known and len(known) > 1

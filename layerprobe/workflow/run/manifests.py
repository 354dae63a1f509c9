"""By which hashes a run knows its images, in run.json: of names, classes and sizes, and of names, classes and contents.

`manifests` has the former, the only one of runs that an earlier version began. `contents` has the latter; features and
ranks belong to it. `features_by_size` names the splits of an earlier version's run: there they carry the former.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from layerprobe.data.splits import Dataset, contents_sha256, manifest_sha256
from layerprobe.system.errors import DataError
from layerprobe.system.progress import Listener
from layerprobe.workflow.run.runs import Run

Record = Mapping[str, Any]


def manifests_of(dataset: Dataset) -> dict[str, dict[str, str]]:
    """What the record of a new run says of its images, which are hashed."""
    splits, names = dataset.splits, dataset.class_names
    return {
        "manifests": {name: manifest_sha256(split, names) for name, split in splits.items()},
        "contents": {name: contents_sha256(split, names) for name, split in splits.items()},
    }


def feature_manifest(record: Record, dataset: Dataset, split: str) -> str:
    """The hash that features of a split carry, if they are of these images."""
    contents = contents_sha256(dataset.splits[split], dataset.class_names)
    known = _checked_by_size(record, dataset)
    is_the_runs = known.get("contents", {}).get(split) == contents
    by_size = is_the_runs and split in known.get("features_by_size", [])
    return str(record["manifests"][split]) if by_size else contents


def recorded_manifest(record: Record, split: str) -> str:
    """As `feature_manifest`, if the images are those that the run began with: nothing of them is looked at.

    It is empty for a split that the run does not know.
    """
    contents = record.get("contents", {})
    by_size = split not in contents or split in record.get("features_by_size", [])
    return str((record["manifests"] if by_size else contents).get(split, ""))


def require_same_images(record: Record, dataset: Dataset, splits: Sequence[str], *, fix: str) -> None:
    """Check that the images of some splits are those that a run began with; a split that it does not know passes."""
    now, known = manifests_of(dataset), _checked_by_size(record, dataset)
    data = record["recipe"]["data"]
    for name in splits:
        expected = known.get("contents", {}).get(name)
        if expected == now["contents"][name] or (expected is None and name not in record["manifests"]):
            continue
        same_by_size = record["manifests"].get(name) == now["manifests"][name]
        what = "the same names and sizes, another content" if same_by_size else "other names, classes or sizes"
        raise DataError(
            f"the {name} images are not those the run began with: {what}",
            file=data.get("root") or data["name"],
            fix=fix,
        )


def have_other_images(one: Record, other: Record, split: str) -> bool:
    """Whether a split of two runs is known to hold other images or classes.

    They are told by content where both records have it, else by names, classes and sizes. Images that come from no
    files are not compared between two recipes: they may be drawn at the size, or given in the scale, of a network.
    """
    roots = (record["recipe"].get("data", {}).get("root") for record in (one, other))
    if one["experiment"] != other["experiment"] and not all(roots):
        return False
    for field in ("contents", "manifests"):
        known = {record.get(field, {}).get(split) for record in (one, other)}
        if None not in known:
            return len(known) > 1
    return False


def upgrade(run: Run, dataset: Dataset, listener: Listener) -> None:
    """Write the contents of its images into the record of an earlier version's run; the caller holds the lock.

    Its images were compared by names, classes and sizes for the last time: those that agree by these are taken for its
    own. Its features and ranks stay valid.
    """
    record = run.read()
    known = _checked_by_size(record, dataset)
    if known == record:
        return
    run.write(dict(known))
    splits = [name for name in known["contents"] if name not in record.get("contents", {})]
    note = f"{run.name}: the {' and '.join(splits)} images have the names, classes and sizes that the run began with;"
    note += " from now on their content is compared too"
    run.log(note)
    listener.say(note)


def _checked_by_size(record: Record, dataset: Dataset) -> Record:
    """The record with the contents of the splits that it knows by size alone and that agree by size."""
    now, known, by_size = manifests_of(dataset), record.get("contents", {}), record["manifests"]
    agreed = [name for name in dataset.splits if name not in known and by_size.get(name) == now["manifests"][name]]
    if not agreed:
        return record
    contents = {**known, **{name: now["contents"][name] for name in agreed}}
    return {**record, "contents": contents, "features_by_size": [*record.get("features_by_size", []), *agreed]}

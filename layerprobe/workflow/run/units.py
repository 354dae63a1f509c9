"""The units that intervals resample: the classes of queries, or clusters of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.ranking.left_out import find_divided_class
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.wording import first_named
from layerprobe.values.intervals import PARENT
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.runs import Run

_WHOLE = "Leave --cluster out, or name a column that is the same for all images of a class"


def units_of(
    dataset: Dataset, ids: Sequence[str], labels: NDArray[np.integer], cluster: str | None
) -> NDArray[np.int64]:
    """(Q,) the unit of each image; one without a value in the column, or in a class without a parent, is its own.

    Args:
        labels: (Q,) classes of the images.
        cluster: None for the classes; `parent` for the folder above a class's; else a column of the data set.
    """
    if cluster is None:
        return labels.astype(np.int64)
    columns = dict.fromkeys(column for split in dataset.splits.values() for column in split.columns)
    if cluster in columns:
        texts_by_image = {
            image: text
            for split in dataset.splits.values()
            if cluster in split.columns
            for image, text in zip(split.ids, split.columns[cluster], strict=True)
        }
        for image in ids:
            if image not in texts_by_image:
                fix = "Restore the data set as it was when the run was probed"
                raise DataError(f"the data set has no image {image}, or no {cluster} for it", fix=fix)
        texts = [texts_by_image[image] for image in ids]
        return _numbers(texts, [f"image {image}" for image in ids])
    if cluster != PARENT:
        raise UnknownNameError("column in --cluster:", cluster, [*columns, PARENT])
    return parent_units([dataset.class_names[label] for label in labels.tolist()], list(columns))


def parent_units(class_names: Sequence[str], columns: Sequence[str] = ()) -> NDArray[np.int64]:
    """(N,) the unit of each image: the folder above its class, or the class itself without one.

    Args:
        class_names: of the N images.
        columns: that may be named instead.
    """
    folders = [_parent(name) for name in class_names]
    if not any(folders):
        fix = "Leave --cluster out" + (f", or name a column: {', '.join(columns)}" if columns else "")
        raise RecipeError("--cluster parent: no class has a folder above its own", fix=fix)
    return _numbers(folders, [f"class {name}" for name in class_names])


def units_of_run(
    run: Run, images: Mapping[str, tuple[NDArray[np.integer], Sequence[str]]], cluster: str | None
) -> dict[str, NDArray[np.int64]]:
    """Split -> (N,) unit of each image of a run, with the same numbers in all splits.

    The data set is read only for clusters.

    Args:
        images: split -> (N,) classes and N names, as in `run.ranks(epoch, split).rows`.
        cluster: see `units_of`.
    """
    if cluster is None:
        return {split: labels.astype(np.int64) for split, (labels, _) in images.items()}
    stored = {split: units for split in images if (units := run.stored_units(split)) is not None}
    if len(stored) == len(images):
        return stored
    from layerprobe.workflow.run.from_recipe import load_dataset  # it imports torch, which plots do not need

    return units_of_splits(load_dataset(recorded_recipe(run.read(), run.record_file).data), images, cluster)


def units_of_splits(
    dataset: Dataset, images: Mapping[str, tuple[NDArray[np.integer], Sequence[str]]], cluster: str | None
) -> dict[str, NDArray[np.int64]]:
    """Split -> (N,) unit of each image, with the same numbers in all splits.

    Args:
        images: split -> (N,) classes and N names.
    """
    labels = np.concatenate([classes for classes, _ in images.values()])
    units = units_of(dataset, [name for _, names in images.values() for name in names], labels, cluster)
    ends = np.cumsum([len(classes) for classes, _ in images.values()])[:-1]
    return dict(zip(images, np.split(units, ends), strict=True))


def require_whole_classes(
    labels: NDArray[np.integer], units: NDArray[np.int64], cluster: str | None, class_names: Sequence[str] = ()
) -> None:
    """Check that no class lies in several clusters.

    Args:
        labels: (N,) class of each image.
        units: (N,) unit of each.
        class_names: of class 0, 1 ...; empty: unknown.
    """
    divided = find_divided_class(labels.astype(np.int64), units)
    if divided is not None:
        name = class_name(class_names, divided)
        raise RecipeError(f"--cluster {cluster}: images of class {name} are of several", fix=_WHOLE)


def folders_note(class_names: Iterable[str]) -> str | None:
    """That classes lie in several folders, of which one has two classes or more; None where they do not."""
    names = set(class_names)
    folders = sorted({folder for name in names if (folder := _parent(name))})
    if len(folders) < 2 or sum(map(bool, map(_parent, names))) == len(folders):
        return None
    return (
        f"classes lie in {len(folders):,} folders ({first_named(folders)}): if those of a folder are alike, add"
        f" --cluster {PARENT}"
    )


def folders_note_of_run(run: Run, epoch: int, split: str) -> str | None:
    """A note where classes of a run's split lie in folders of several, or share values of a column of a csv table.

    None elsewhere, and where the stored features or the table are gone.
    """
    try:
        labels, ids = run.ranks(epoch, split).rows
        names = run.feature_head(epoch, split).class_names
        note = folders_note(names[label] for label in np.unique(labels).tolist()) if names else None
        if note is None and run.read().data.get("name") == "csv":
            from layerprobe.workflow.run.from_recipe import load_dataset

            dataset = load_dataset(recorded_recipe(run.read(), run.record_file).data)
            note = column_note(dataset, ids, labels.astype(np.int64))
    except LayerprobeError:  # nothing but a note is made of them
        return None
    return note


def column_note(dataset: Dataset, ids: Sequence[str], labels: NDArray[np.int64]) -> str | None:
    """That classes share the values of a column, which are at most half as many; None without such a column.

    Args:
        labels: (Q,) classes of the images.
    """
    classes = len(np.unique(labels))
    for column in dict.fromkeys(column for split in dataset.splits.values() for column in split.columns):
        units = units_of(dataset, ids, labels, column)
        values = len(np.unique(units))
        if find_divided_class(labels, units) is None and 2 <= values <= classes / 2:
            return (
                f"classes share {values:,} values of column {column}: if those of a value are alike, add --cluster"
                f" {column}"
            )
    return None


def require_redrawable(
    dataset: Dataset, splits: Sequence[str], units: Mapping[str, NDArray[np.int64]], cluster: str | None
) -> None:
    """Check that the jackknife of `--interval redraw` can leave units out: they are whole classes.

    Args:
        units: split -> (N,) unit of each image; of galleries too.
    """
    for name in splits:
        rules = dataset.search_rules.get(name)
        if rules is not None and rules.positives is not None:
            why = f"data.positives lists the right items of {name}, so that classes cannot be left out"
            raise RecipeError(f"--interval redraw: {why}", fix="Leave --interval out")
        if rules is not None and rules.label_sets is not None:
            why = f"an image of {name} may have several labels, so that classes cannot be left out"
            raise RecipeError(f"--interval redraw: {why}", fix="Leave --interval out")
        if name in dataset.drawn:
            why = f"data.queries draws some of the images of {name}, so that classes cannot be left out"
            raise RecipeError(f"--interval redraw: {why}", fix="Leave --interval out")
        names = list(dict.fromkeys([name, dataset.search_in.get(name, name)]))
        labels = np.concatenate([dataset.splits[split].labels for split in names])
        divided = find_divided_class(labels, np.concatenate([units[split] for split in names]))
        if divided is not None:
            why = f"column {cluster} divides class {dataset.class_names[divided]}"
            raise RecipeError(f"--interval redraw leaves out whole classes; {why}", fix=_WHOLE)


def _parent(class_name: str) -> str:
    return class_name.rpartition("/")[0]


def _numbers(texts: Sequence[str], replacements: Sequence[str]) -> NDArray[np.int64]:
    """(N,) a number for each text, equal for equal texts; `replacements` replace empty ones."""
    keys = [(text, "" if text else name) for text, name in zip(texts, replacements, strict=True)]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], np.int64)

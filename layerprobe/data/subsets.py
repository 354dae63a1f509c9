"""Which classes train, and smaller or coarser training splits: held-out classes, a share of each, meta-classes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np

from layerprobe.data.splits import Dataset, LabelArray, Split
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import first_named

_NUMBER = re.compile("[0-9]+")
_CODE = re.compile("[0-9][A-Za-z]+[0-9]")  # of a hash, whose digits are no numbers


def count_train_classes(classes: int, requested: int | None, name: str, *, fix: str = "Get the set again") -> int:
    """How many of the classes of a data set are for training: those asked for, or the first half.

    Args:
        fix: of too few classes.
    """
    count = classes // 2 if requested is None else requested
    least, needed = (2, "2 to test") if requested == 0 else (4, "2 to train and 2 to test")
    if classes < least:
        raise DataError(f"{name} has {classes} classes here; {needed} are needed", fix=fix)
    if count and not 2 <= count <= classes - 2:
        raise RecipeError(
            f"data.train_classes = {count}: of {name}'s {classes} classes, at least 2 must train and 2 test",
            fix=f"Give a number from 2 to {classes - 2}, or 0 to put all into test",
        )
    return count


def require_no_class_chosen(**chosen: int | None) -> None:
    """Check that no key of [data] chooses the training classes, where every class is on both sides."""
    for key, value in chosen.items():
        if value is not None:
            problem = f"data.{key} = {value}: with data.protocol = classification every class is on both sides"
            raise RecipeError(problem, fix="Leave out one of the two keys")


def divide_classes(classes: int, train: int, class_seed: int | None) -> tuple[list[int], list[int]]:
    """The classes for training and those for testing, each ascending, of the classes 0 ... C - 1 of a data set.

    Args:
        class_seed: shuffles the classes, at least 0; None takes the first ones for training.
    """
    if class_seed is not None and class_seed < 0:
        raise RecipeError(f"data.class_seed = {class_seed}: must be at least 0", fix="Set it to 0 or more")
    order = range(classes) if class_seed is None else np.random.default_rng(class_seed).permutation(classes).tolist()
    return sorted(order[:train]), sorted(order[train:])


def numeric_order_note(names: Sequence[str], train: int) -> str | None:
    """Which classes train, where numeric order of the numbers in their names would let others train; else None.

    Args:
        names: sorted as text, of which the first are for training.
        train: how many are.
    """
    digits = max((len(number) for name in names for number in _NUMBER.findall(name)), default=0)

    def padded(name: str) -> str:
        return name if _CODE.search(name) else _NUMBER.sub(lambda number: number[0].zfill(digits), name)

    numeric, in_train = sorted(names, key=padded), set(names[:train])
    if in_train == set(numeric[:train]):
        return None
    ranges: dict[bool, list[str]] = {True: [], False: []}
    for trains, group in groupby(numeric, in_train.__contains__):
        members = list(group)
        ranges[trains].append(members[0] if len(members) == 1 else f"{members[0]} to {members[-1]}")
    return (
        f"class names are sorted as text: train has {first_named(ranges[True])}, test has {first_named(ranges[False])};"
        " zero-pad the numbers for numeric order, or set data.class_seed to shuffle the classes"
    )


def with_validation(dataset: Dataset, fraction: float) -> Dataset:
    """The data set with some of its training classes moved to a validation split.

    A layer or an epoch can be chosen on them without using the test classes. The classes are drawn at random, but are
    the same for all seeds, so that the runs of an experiment choose by the same images.

    Args:
        fraction: of the training classes, at least 0 and below 1; 0 leaves the data set unchanged.
    """
    if not fraction:
        return dataset
    classes = _classes_to_hold_out(dataset, "data.validation_classes")
    held = classes[: round(fraction * len(classes))]
    return _hold_out(dataset, held, f"data.validation_classes = {fraction:g}")


def with_validation_fold(dataset: Dataset, folds: int, fold: int) -> Dataset:
    """The data set with one of several parts of its training classes moved to a validation split.

    The parts are equally large but for one class, drawn at random, and the same for all seeds. A network that is
    trained once for each part has each training class held out once.

    Args:
        folds: number of parts, at least 2; 0 leaves the data set unchanged.
        fold: which of them, from 0.
    """
    if not folds:
        return dataset
    classes = _classes_to_hold_out(dataset, "data.validation_folds")
    held = np.array_split(classes, folds)[fold]
    return _hold_out(dataset, held, f"data.validation_folds = {folds}", f" (fold {fold} of 0 to {folds - 1})")


def _classes_to_hold_out(dataset: Dataset, key: str) -> LabelArray:
    """The training classes in random order."""
    train = _train(dataset, key)
    if dataset.classification:
        raise RecipeError(
            f"{key}: with data.protocol = classification every class is in the test split, also those held out",
            fix="Leave out one of the two keys",
        )
    if "validation" in dataset.splits:
        raise RecipeError(f"{key}: this data set has a validation split of its own", fix="Leave it out")
    return np.random.default_rng(0).permutation(np.unique(train.labels))


def _hold_out(dataset: Dataset, held: LabelArray, setting: str, which: str = "") -> Dataset:
    train = dataset.splits["train"]
    count = train.num_classes
    if not 2 <= len(held) <= count - 2:
        raise RecipeError(
            f"{setting} holds out {len(held)} of {count} training classes; at least 2 must be held out and 2 be left",
            fix=f"Change {setting.partition(' ')[0]} or leave it out",
        )
    chosen = np.isin(train.labels, held)
    parts = {
        "train": train.of_rows(np.flatnonzero(~chosen)),
        "validation": train.of_rows(np.flatnonzero(chosen), "validation"),
    }
    other_splits = {name: split for name, split in dataset.splits.items() if name != "train"}
    note = f"{len(held)} of {count} training classes held out for validation{which}"
    return replace(dataset, splits={**parts, **other_splits}, notes=(*dataset.notes, note))


def with_share(dataset: Dataset, share: float, *, seed: int) -> Dataset:
    """The data set with a share of the images of each training class, as Horiguchi et al. (2019, section 4.3) vary it.

    Args:
        share: above 0 and at most 1. The number of images is rounded; at least 2 stay if the class has 2.
    """
    if share == 1:
        return dataset
    train = _train(dataset, "data.share")
    is_chosen = np.zeros(len(train), bool)
    for label in np.unique(train.labels):
        images = np.flatnonzero(train.labels == label)
        count = min(len(images), max(2, round(share * len(images))))
        is_chosen[np.random.default_rng([seed, int(label)]).permutation(images)[:count]] = True
    splits = {**dataset.splits, "train": train.of_rows(np.flatnonzero(is_chosen))}
    note = f"{share:.0%} of each training class: {int(is_chosen.sum())} of {len(train)} images"
    return replace(dataset, splits=splits, notes=(*dataset.notes, note))


def random_subset(split: Split, count: int, *, seed: int) -> Split:
    """At most `count` images of a split, drawn at random, in its order."""
    return split.of_rows(np.sort(np.random.default_rng(seed).permutation(len(split))[:count]))


def _train(dataset: Dataset, key: str) -> Split:
    if "train" not in dataset.splits:
        raise RecipeError(f"{key}: this data set has no training images to take it from", fix="Leave it out")
    return dataset.splits["train"]


def meta_classes(labels: LabelArray, count: int, *, seed: int) -> LabelArray:
    """Classes merged at random into meta-classes, whose numbers of classes differ by at most one.

    The members of DREML are trained on them (Fehervari et al. 2019, section 2.10).

    Args:
        labels: (N,) classes.
        count: number of meta-classes, from 2 to the number of classes.

    Returns:
        (N,) in 0 ... count - 1.
    """
    classes, places = np.unique(labels, return_inverse=True)
    if count > len(classes):
        raise RecipeError(
            f"train.meta_classes = {count}: there are {len(classes)} training classes", fix="Lower train.meta_classes"
        )
    merged = np.random.default_rng([seed, count]).permutation(len(classes)) % count
    return merged[places].astype(np.int64)

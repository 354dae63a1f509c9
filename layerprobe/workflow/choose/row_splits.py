"""The splits of given features -> which rows choose, on which reductions are fitted, and which test the choice."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.statistics.choice import folds_of
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.facts import WITHIN_FOLDS, assumed_text, chosen_on_text, cross_fitted_text
from layerprobe.workflow.choose.given_features import GivenFeatures

Rows = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class RowSplits:
    """The rows on which candidates are compared, fitted and tested.

    Args:
        split: of the rows that are chosen on: validation, train or test.
        choosing: (Q,) the rows that are chosen on.
        fitted_on: the rows that reductions are fitted on; None: those that are chosen on, out of fold.
        test: (T,) the rows that the choice is tested on; empty without test classes, and if cross-fitted.
        folds: (Q,) the fold of each row that is chosen on.
        basis: as of a `Choice`.
    """

    given: GivenFeatures
    split: str
    choosing: Rows
    fitted_on: Rows | None
    test: Rows
    folds: NDArray[np.int64]
    notes: tuple[str, ...]
    basis: str = ""

    @property
    def crossed(self) -> bool:
        """Whether the choice is cross-fitted."""
        return self.split == "test"

    @property
    def labels(self) -> NDArray[np.int64]:
        """(Q,) classes of the rows that are chosen on."""
        return self.given.labels[self.choosing]

    @property
    def units(self) -> NDArray[np.int64]:
        """(Q,) the class of each row that is chosen on, or its cluster of classes."""
        return self.given.units[self.choosing]

    def score_notes(self) -> dict[str, tuple[str, ...]]:
        """Split -> the notes of its scores."""
        return {"test": self._notes_on(self.test), self.split: self._notes_on(self.choosing)}

    def _notes_on(self, rows: Rows) -> tuple[str, ...]:
        lone = self.given.lone(rows) if len(rows) else 0
        return (*self.given.notes, f"{lone:,} lone queries count as misses") if lone else self.given.notes

    def without_collapsed(self, file: Path | None) -> RowSplits:
        """Only the layers in which the rows that are chosen on differ."""
        collapsed = self.given.collapsed(self.choosing)
        if not collapsed:
            return self
        names = ", ".join(str(layer) for layer in collapsed)
        kept = {layer: values for layer, values in self.given.features.items() if layer not in collapsed}
        if not kept:
            what = f"every layer has collapsed to one vector: {names}"
            raise DataError(what, file=file, fix="Give features that differ between images")
        given = replace(self.given, features=kept)
        return replace(self, given=given, notes=(*self.notes, f"skipped: collapsed to one vector: {names}"))


def row_splits_of(given: GivenFeatures, seed: int, seen: bool, file: Path | None) -> RowSplits:
    """The rows to choose, fit and test on.

    Args:
        seen: whether the network may have been trained on the train rows.
    """
    rows = {name: given.rows_of(name) for name in ("train", "validation", "test")}
    held = [name for name, found in rows.items() if len(found)]
    if held == ["train"] and seen:
        fix = "Give test rows of classes that it has not seen; if it has seen none of these, leave the splits out"
        raise RecipeError("all are train rows, on which the network may have been trained", file=file, fix=fix)
    classes = {name: len(np.unique(given.labels[found])) for name, found in rows.items() if len(found)}
    split, fitted_on, basis = "test", rows["train"] if held == ["train", "test"] else None, ""
    notes: tuple[str, ...]
    if len(held) < 2:
        notes = ("each fold of classes is scored with what was chosen on the other folds", WITHIN_FOLDS)
    elif "validation" in held:
        split, fitted_on = "validation", rows["train"] if "train" in held else None
        notes = ("half-whitening is fitted on train",)
        if fitted_on is None:
            notes = (f"{chosen_on_text('validation')}: {WITHIN_FOLDS}",)
    elif seen:
        notes = (
            "each fold of classes is scored with what was chosen on the other folds, in the whole gallery",
            "half-whitening is fitted on train",
        )
        basis = cross_fitted_text(classes["test"], classes["train"], sure=False)
    else:
        split, fitted_on, notes = "train", None, (f"{chosen_on_text('train')}: {WITHIN_FOLDS}",)
    if len(held) < 2:
        classes = {"test": len(np.unique(given.labels))}
    assumed = assumed_text("the network", {name: classes[name] for name in (split, "test") if name in classes})
    choosing = np.arange(len(given.labels)) if len(held) < 2 else rows[split]
    test = np.arange(0) if split == "test" else rows["test"]
    _, units = np.unique(given.units[choosing], return_inverse=True)
    folds = folds_of(units, seed=seed)[units]
    return RowSplits(given, split, choosing, fitted_on, test, folds, (*notes, assumed), basis)

"""The data set `sop`, Stanford Online Products: photographs of 22,634 products."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from layerprobe.data import annotation_files
from layerprobe.data.annotation_files import Annotations, Member, whole_number
from layerprobe.data.spec import Count, DatasetSpec
from layerprobe.data.splits import Dataset

_COUNTS = {"train": Count(59551, 11318, (2, 12)), "test": Count(60502, 11316, (2, 12))}
_PLACES = (".", "Stanford_Online_Products")
_COLUMNS: Mapping[str, Callable[[str], Any]] = {
    "image_id": whole_number,
    "class_id": whole_number,
    "super_class_id": whole_number,
    "path": str,
}
_LAYOUT = (
    "ROOT/ or ROOT/Stanford_Online_Products/ with Ebay_train.txt, Ebay_test.txt and bicycle_final/ to toaster_final/"
)


def load(root: Path, *, allow_partial: bool = False) -> Dataset:
    """The products of Stanford Online Products (Song et al., CVPR 2016), in the lists' order.

    Ebay_train.txt and Ebay_test.txt are the split. Ids are relative to their folder, wherever below the root that is.
    Classes have no names and are called by their numbers. Nothing is written.
    """
    return _load(root, _COUNTS, allow_partial=allow_partial)


def _load(root: Path, counts: Mapping[str, Count], *, allow_partial: bool = False) -> Dataset:
    return annotation_files.dataset_of(_read_annotations(root), counts, allow_partial=allow_partial)


def _read_annotations(root: Path) -> Annotations:
    folder = annotation_files.find_folder(root, _PLACES, "Ebay_train.txt", layout=_LAYOUT)
    splits: dict[str, list[Member]] = {
        name: [
            (path, class_id)
            for _, class_id, _, path in annotation_files.read_rows(folder / f"Ebay_{name}.txt", _COLUMNS, above=1)
        ]
        for name in ("train", "test")
    }
    return Annotations(folder, splits)


SPEC = DatasetSpec(
    load=load,
    unchecked=annotation_files.unchecked_loader(_read_annotations),
    defaults=annotation_files.DEFAULTS,
    holds="Stanford Online Products",
    layout=_LAYOUT,
    where="https://cvgl.stanford.edu/projects/lifted_struct/",
    counts=_COUNTS,
)

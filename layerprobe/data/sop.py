"""Stanford Online Products: photographs of 22,634 things that were for sale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from layerprobe.data import listed
from layerprobe.data.listed import Annotations, Count, Listed
from layerprobe.data.splits import Dataset

DEFAULTS: Mapping[str, object] = listed.DEFAULTS

_COUNTS = {"train": Count(59551, 11318, (2, 12)), "test": Count(60502, 11316, (2, 12))}
_PLACES = (".", "Stanford_Online_Products")
_COLUMNS = {"image_id": int, "class_id": int, "super_class_id": int, "path": str}
_LAYOUT = (
    "Expected one of ROOT/Ebay_train.txt, ROOT/Stanford_Online_Products/Ebay_train.txt, with Ebay_test.txt and the"
    " folders bicycle_final to toaster_final beside it"
)


def load(root: Path, *, allow_partial: bool = False) -> Dataset:
    """The things of Stanford Online Products (Song et al., CVPR 2016), in the lists' order.

    Ebay_train.txt and Ebay_test.txt are the split. Ids are relative to their folder, wherever below the root that is;
    a class has no name and is called by its number. Nothing is written.

    Args:
        root: Stanford_Online_Products, or the folder that holds it.
        allow_partial: go on where images are missing; `notes` says how many.

    Raises:
        DataError: neither of the layouts, a bad list, or images missing.
    """
    return _load(root, _COUNTS, allow_partial=allow_partial)


def _load(root: Path, counts: Mapping[str, Count], *, allow_partial: bool = False) -> Dataset:
    return listed.dataset_of(_annotated(root), counts, allow_partial=allow_partial)


def _annotated(root: Path) -> Annotations:
    folder = listed.find_folder(root, _PLACES, "Ebay_train.txt", expected=_LAYOUT)
    splits: dict[str, list[Listed]] = {
        name: [
            (path, class_id)
            for _, class_id, _, path in listed.read_rows(folder / f"Ebay_{name}.txt", _COLUMNS, above=1)
        ]
        for name in ("train", "test")
    }
    return Annotations(folder, splits, {})

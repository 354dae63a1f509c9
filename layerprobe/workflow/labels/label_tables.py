"""The tables of `layerprobe labels`, and its file."""

from __future__ import annotations

from collections.abc import Callable

from layerprobe.measure.label_errors import NEIGHBOURS
from layerprobe.system.wording import one_line
from layerprobe.tables.formats import as_csv
from layerprobe.tables.tables import TextTable
from layerprobe.values.labels import Duplicates, LabelledImage, ReviewedLabels

_SHOWN = 12  # rows of a table in a terminal
_COLUMNS = ("image", "path", "split", "label", "suggested", "reason", "other image", "layers", "votes", "distance")


def suspect_table(reviewed: ReviewedLabels) -> TextTable | None:
    """The first images whose neighbours agree on another label."""
    shown, layers = reviewed.suspects[:_SHOWN], len(reviewed.layers)
    if not shown:
        return None
    rows = [
        (x.image.label, x.suggested, f"{x.layers} of {layers}", f"{x.votes} of {reviewed.votes}", _short(x.image))
        for x in shown
    ]
    return TextTable(
        ("label", "suggested", "layers", "neighbours", "image"),
        tuple(rows),
        numbers=frozenset({2, 3}),
        heading=(
            f"{reviewed.run}#{reviewed.epoch}: images of which no neighbour has their label, and most have another one",
            f"{NEIGHBOURS} neighbours by each of {', '.join(reviewed.layers)}; the nearest has the image's label for"
            f" {100 * reviewed.recall:.0f} % of the images by the best of them",
        ),
        notes=_more(len(reviewed.suspects)),
    )


def duplicate_table(reviewed: ReviewedLabels) -> TextTable | None:
    """The pairs of labels that duplicates have, those with the closest before others, with their closest pair."""
    pairs: dict[frozenset[str], list[Duplicates]] = {}
    for x in reviewed.duplicates:
        pairs.setdefault(frozenset(image.label for image in x.images), []).append(x)
    if not pairs:
        return None
    rows = [
        (*(image.label for image in closest.images), f"{1 + len(others):,}",
         "same" if closest.is_same else f"{closest.distance:.2f}", "\n".join(map(_short, closest.images)))
        for closest, *others in list(pairs.values())[:_SHOWN]
    ]  # fmt: skip
    return TextTable(
        ("label", "other label", "pairs", "closest", "images"),
        tuple(rows),
        numbers=frozenset({2, 3}),
        multiline=frozenset({4}),
        heading=(
            "Equal or nearly equal images with different labels",
            "closest: the distance as a share of the median distance of a nearest neighbour",
        ),
        notes=_more(len(pairs)),
    )


def divided_table(reviewed: ReviewedLabels) -> TextTable | None:
    """The classes that may be two."""
    if not reviewed.divided:
        return None
    rows = [
        (x.label, f"{x.images:,}", ", ".join(f"{len(group):,}" for group in x.groups),
         "\n".join(_short(group[0]) for group in x.groups[:2]))
        for x in reviewed.divided[:_SHOWN]
    ]  # fmt: skip
    return TextTable(
        ("label", "images", "groups", "an image of the first two"),
        tuple(rows),
        numbers=frozenset({1, 2}),
        multiline=frozenset({3}),
        heading=("Classes whose images fall into groups that are not among each other's neighbours",),
        notes=_more(len(reviewed.divided)),
    )


def labels_csv(reviewed: ReviewedLabels, path_of: Callable[[str], str]) -> str:
    """A row for each image to look at, and why: suspects, both images of duplicates, and groups after the first.

    Args:
        path_of: name of an image -> its file, "" where it has none.
    """
    rows = [
        _cells(x.image, path_of, "neighbours", x.suggested, layers=x.layers, votes=x.votes) for x in reviewed.suspects
    ]
    for pair in reviewed.duplicates:
        reason = "duplicate" if pair.is_same else "near duplicate"
        for x, y in (pair.images, pair.images[::-1]):
            rows.append(_cells(x, path_of, reason, y.label, other=y.image, distance=f"{pair.distance:.4f}"))
    for divided in reviewed.divided:
        rows += [_cells(x, path_of, "divided class", "") for group in divided.groups[1:] for x in group]
    return f"{as_csv(TextTable(_COLUMNS, tuple(rows)))}\n"


def _cells(  # noqa: PLR0913 - the columns
    x: LabelledImage,
    path_of: Callable[[str], str],
    reason: str,
    suggested: str,
    *,
    other: str = "",
    layers: int | str = "",
    votes: int | str = "",
    distance: str = "",
) -> tuple[str, ...]:
    cells = (x.image, path_of(x.image), x.split, x.label, suggested, reason, other, layers, votes, distance)
    return tuple(map(str, cells))


def _more(count: int) -> tuple[str, ...]:
    return (f"{count - _SHOWN:,} more: --csv or --json",) if count > _SHOWN else ()


def _short(x: LabelledImage) -> str:
    """The name of an image in one line, with its split unless the name has it."""
    return one_line(x.image if x.image.startswith(x.split) else f"{x.split}: {x.image}")

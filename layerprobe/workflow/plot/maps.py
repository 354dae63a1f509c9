"""The layers and the images that a map of features shows, and their projections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.projections import kept_neighbours, project, require_method
from layerprobe.plots.plot import PlotOptions
from layerprobe.store import FeatureHead
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import Similarity
from layerprobe.values.scores import Score, Subject
from layerprobe.values.views import PROJECTIONS, ImageSample, Item, Projection, ProjectionMethod
from layerprobe.workflow.plot.feature_views import (
    TESTED,
    open_stored,
    require_vectors,
    select_layers,
    tested_layers,
)
from layerprobe.workflow.plot.query_rules import (
    choose_queries,
    parse_rule,
    ranks_exact_for_first,
    rule_text,
)
from layerprobe.workflow.probe.post_processed_features import query_rows
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split, probe_fix
from layerprobe.workflow.run.runs import Run

MOST = 5_000  # images drawn
CLASSES = 12  # that have a colour each

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _DrawnImages:
    """The images that are drawn, of all runs.

    Args:
        rows: (N,) of the split, ascending.
        images: N ids and classes.
        seed: of the sample, and of projections that are drawn.
        notes: how they were sampled; none where all are drawn.
    """

    rows: Rows
    images: tuple[Item, ...]
    seed: int
    notes: tuple[str, ...]

    @property
    def shows_classes(self) -> bool:
        """Whether the classes are few enough for a colour each."""
        return len({image.name for image in self.images}) <= CLASSES


def projections_of(
    runs: Sequence[tuple[Run, Sequence[Score]]], options: PlotOptions, embeddings: Mapping[str, RankedLayer]
) -> list[Projection]:
    """The features of a few layers of some runs, or of the requested ones, in two dimensions.

    All are of the same test images: of the queries of the first run, or of a sample of 5,000 by its seed.

    Args:
        runs: with their scores, at least one.
        embeddings: run -> its embedding layer, where that is known.
    """
    method: ProjectionMethod = options.by or "pca"  # type: ignore[assignment] # checked in the next line
    if method not in PROJECTIONS:
        raise UnknownNameError("projection", method, PROJECTIONS)
    require_method(method)
    selection = select_layers([scores for _, scores in runs], options, embeddings)
    drawn: _DrawnImages | None = None
    projections: list[Projection] = []
    left_out: list[str] = []
    for run, scores in runs:
        subjects = tested_layers(scores, selection)
        for subject in subjects:
            require_vectors(subject.ranked)
        epoch = subjects[0].epoch
        head = run.feature_head(epoch, TESTED)
        drawn = drawn or _choose_images(head, query_rows(run, epoch, TESTED), options.classes, scores[0].seed or 0)
        if run != runs[0][0]:
            _require_same_images(run, head, runs[0][0], drawn)
        marked, rule_notes = (True,) * len(drawn.rows), tuple[str, ...]()
        if options.where is not None:
            marked, rule_notes = _mark(*_open_ranks(run, epoch, head, drawn), options.where, head.class_names)
        _, read = open_stored(run, scores, epoch)
        for subject in subjects:
            features = read(TESTED, subject.ranked)
            values = features.features[drawn.rows]
            if not np.isfinite(values).all():
                left_out.append(
                    f"{run.name}: {subject.ranked} at epoch {epoch} is not drawn: NaN or Inf in its features"
                )
                continue
            right: tuple[bool | None, ...] = ()
            if not drawn.shows_classes:
                right = _right(*_open_ranks(run, epoch, head, drawn), subject.ranked)
            projection = _project(subject, values, method, drawn, total=len(head.ids))
            notes = (*drawn.notes, *features.notes, *rule_notes)
            projections.append(replace(projection, right=right, marked=marked, notes=notes))
    if not projections:
        raise NumericError(left_out[0], fix="Name another layer by --layers")
    return [replace(projection, notes=(*projection.notes, *left_out)) for projection in projections]


def _choose_images(
    head: FeatureHead, searched_for: Rows | None, patterns: Sequence[str] | None, seed: int
) -> _DrawnImages:
    """The queries of the requested classes; of more than 5,000, a sample.

    Args:
        searched_for: rows of the queries; None for all.
    """
    labels, ids = head.rows
    rows = np.arange(len(labels)) if searched_for is None else np.sort(searched_for)
    names = np.array([class_name(head.class_names, label) for label in labels.tolist()])
    if patterns:
        rows = rows[np.isin(names[rows], _match_classes(patterns, names[rows]))]
    chosen, sample = sample_classes(labels[rows], MOST, seed)
    notes = () if sample == "all" else (f"{len(chosen):,} of {len(rows):,} images: {sample} drawn by seed {seed}",)
    rows = rows[chosen]
    images = tuple(Item(ids[row], str(names[row])) for row in rows.tolist())
    return _DrawnImages(rows.astype(np.int64), images, seed, notes)


def sample_classes(labels: NDArray[np.integer], most: int, seed: int) -> tuple[NDArray[np.intp], ImageSample]:
    """Rows of whole classes, drawn at random, that together have at most so many images; and what was drawn.

    Images are drawn where fewer than two classes, or less than half of `most` images, would be.

    Args:
        labels: (N,).
    """
    if len(labels) <= most:
        return np.arange(len(labels)), "all"
    rng = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    kept, room, smallest = list[int](), most, counts.min()
    for place in rng.permutation(len(classes)).tolist():
        if room < smallest:
            break
        if counts[place] <= room:
            kept.append(place)
            room -= counts[place]
    if len(kept) >= 2 and room <= most / 2:
        return np.flatnonzero(np.isin(labels, classes[kept])), "whole classes"
    return np.sort(rng.permutation(len(labels))[:most]), "images"


def _match_classes(patterns: Sequence[str], names: NDArray[np.str_]) -> list[str]:
    """The classes that names or globs mean."""
    all_names = sorted(set(names.tolist()))
    matches: list[str] = []
    for pattern in patterns:
        of_pattern = [name for name in all_names if name == pattern] or [
            name for name in all_names if fnmatchcase(name, pattern)
        ]
        if not of_pattern:
            raise UnknownNameError("class", pattern, all_names)
        matches += of_pattern
    return matches


def _require_same_images(run: Run, head: FeatureHead, reference: Run, drawn: _DrawnImages) -> None:
    """Check that the features of a further run are of the images that are drawn."""
    is_long_enough = len(head.ids) > drawn.rows[-1]
    if (
        not is_long_enough
        or tuple(head.ids[row] for row in drawn.rows.tolist()) != tuple(image.id for image in drawn.images)
        or have_other_images(reference.read(), run.read(), TESTED)
    ):
        message = f"{run.name} and {reference.name} have different {TESTED} images"
        raise DataError(message, file=run.folder, fix="Compare runs on the same images")


def _open_ranks(run: Run, epoch: int, head: FeatureHead, drawn: _DrawnImages) -> tuple[RankedSplit, Rows]:
    """The ranks of a run, and the row in them of each image drawn."""
    ranked_split = open_ranked_split(run, epoch, TESTED)
    row_by_id = {name: row for row, name in enumerate(ranked_split.stored.ids)}
    if any(image.id not in row_by_id for image in drawn.images):
        if row_by_id.keys() <= {*head.ids}:  # another run, whose data.queries draws other queries
            message, fix = "does not search for all images drawn", "Compare runs with the same queries"
        else:
            message = "its ranks are of other images than its features"
            fix = probe_fix(run, ranked_split.record, epoch, TESTED)
        raise DataError(message, file=run.rank_file(epoch, TESTED), fix=fix)
    return ranked_split, np.array([row_by_id[image.id] for image in drawn.images], np.int64)


def _mark(
    ranked_split: RankedSplit, rows: Rows, where: str, class_names: Sequence[str]
) -> tuple[tuple[bool, ...], tuple[str, ...]]:
    """Which of the images drawn satisfy a rule, and a note on it."""
    rule = parse_rule(where, ranked_split.layers, None)
    satisfying = choose_queries(rule, ranked_split, class_names, len(ranked_split.stored.ids)).rows
    marked, text = np.isin(rows, satisfying), rule_text(rule, ranked_split)
    if not marked.any():
        raise RecipeError(f"no image drawn at epoch {ranked_split.epoch}: {text}", fix="Choose another rule")
    return tuple(marked.tolist()), (f"In colour: {text}, {int(marked.sum()):,} images",)


def _right(ranked_split: RankedSplit, rows: Rows, ranked: RankedLayer) -> tuple[bool | None, ...]:
    """Whether the nearest neighbour of each image is right; None where right and wrong ones tie."""
    ranks = ranks_exact_for_first(ranked_split, ranked)
    surely, possibly = ranks.hits(1, "pessimistic")[rows] == 1, ranks.hits(1, "optimistic")[rows] == 1
    return tuple(bool(sure) if sure == may else None for sure, may in zip(surely, possibly, strict=True))


def _project(
    subject: Subject, features: NDArray[np.floating], method: ProjectionMethod, drawn: _DrawnImages, *, total: int
) -> Projection:
    """The features (N, D) of the images drawn, in two dimensions; what is shown of them beside that is left open."""
    similarity: Similarity = subject.ranked.similarity  # type: ignore[assignment] # text from a file, checked there
    points, variances = project(features, method, similarity, drawn.seed)
    shares, chance = kept_neighbours(features, points, similarity)
    return Projection(
        subject.run,
        subject.epoch,
        subject.split,
        subject.ranked,
        method,
        points=tuple((float(x), float(y)) for x, y in points),
        images=drawn.images,
        right=(),
        marked=(),
        total=total,
        kept=float(shares.mean()) if len(shares) else None,
        chance=chance,
        variance=float(variances.sum()) if method == "pca" else None,
    )

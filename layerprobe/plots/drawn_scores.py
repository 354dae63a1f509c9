"""Which scores a figure draws, by run, layer and epoch; their notes, and their CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean

from layerprobe.plots.plot import csv_text
from layerprobe.system.errors import LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, headline_layers, matching_layers, names_by_layer
from layerprobe.values.scores import SPLITS, Score, note_text, shared_notes

_DEFAULT = "R@1"  # of a plot of scores of several metrics
_ALL = 5  # as many layers are all shown

Layer = dict[tuple[int, str], Score]  # (epoch, split) -> its score of the metric that is drawn; epochs ascend
Series = dict[str, Layer]  # name of a layer -> its scores; layers in network order


def metric_of(scores: Iterable[Score]) -> str:
    """The metric that a plot of some scores draws: R@1, or theirs if they have one other metric."""
    metrics = {score.metric for score in scores}
    return metrics.pop() if len(metrics) == 1 else _DEFAULT


def scores_of_metric(scores: Sequence[Score]) -> list[Score]:
    """The scores of `metric_of`, at least one: runs and their layers in the order of the scores, epochs ascending."""
    metric = metric_of(scores)
    drawn = [score for score in scores if score.metric == metric]
    if not drawn:
        metrics = ", ".join(dict.fromkeys(score.metric for score in scores))
        raise LayerprobeError(f"no scores of {metric}", fix=f"There is {metrics}" if metrics else "Probe a layer first")
    runs = list(dict.fromkeys(score.run for score in drawn))
    layers = {layer: place for place, layer in enumerate(dict.fromkeys((score.run, score.ranked) for score in drawn))}
    return sorted(drawn, key=lambda score: (runs.index(score.run), layers[score.run, score.ranked], score.epoch))


def match_layers(names: Sequence[str] | None, ranked_layers: Iterable[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that some names mean, in the order of the names, each once; None without names."""
    if names is None:
        return None
    distinct = list(dict.fromkeys(ranked_layers))
    layers: dict[RankedLayer, None] = {}
    for name in names:
        matches = matching_layers(name, distinct)
        if not matches:
            near = {row.layer for row in matching_layers(name.partition("/")[0], distinct)}
            raise UnknownNameError("layer", name, [str(row) for row in distinct if not near or row.layer in near])
        layers |= dict.fromkeys(matches)
    return list(layers)


def scores_of_layers(scores: Sequence[Score], names: Sequence[str] | None) -> list[Score]:
    """The scores of the requested layers; all without names."""
    layers = match_layers(names, [score.ranked for score in scores])
    return [score for score in scores if layers is None or score.ranked in layers]


def resolve_epoch(scores: Sequence[Score], epoch: int | None) -> int:
    """The requested epoch; None: the last."""
    epochs = sorted({score.epoch for score in scores})
    if epoch not in (None, *epochs):
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"Known: {', '.join(map(str, epochs))}")
    return epochs[-1] if epoch is None else epoch


def scores_until_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; None means the last."""
    return [score for score in scores if epoch is None or score.epoch <= resolve_epoch(scores, epoch)]


def select_raw(scores: Sequence[Score], layers: Collection[RankedLayer] | None = None) -> list[Score]:
    """The scores of the raw and the requested layers; all scores of a run without raw layers.

    In figures with a line for each layer, lines for each of its kinds of post-processing could not be read.
    """
    raw = {score.run for score in scores if score.ranked.post_processing == NO_POST_PROCESSING}
    return [
        score
        for score in scores
        if score.ranked.post_processing == NO_POST_PROCESSING
        or score.run not in raw
        or (layers and score.ranked in layers)
    ]


def omission_notes(scores: Sequence[Score], layers: Collection[RankedLayer] | None = None) -> list[str]:
    """A note on the post-processing that `select_raw` skips, if any."""
    drawn = {score.ranked.post_processing for score in select_raw(scores, layers)}
    ranked = dict.fromkeys(score.ranked for score in scores if score.ranked.post_processing not in drawn)
    # The one with most layers comes first.
    left_out = [name for name, _ in Counter(layer.post_processing for layer in ranked).most_common()]
    which = "it" if len(left_out) == 1 else f"one of {len(left_out)} kinds of post-processing"
    return [f"Raw layers; --layers '*/{left_out[0]}' shows them after {which}."] if left_out else []


def keep_one_kind(scores: Sequence[Score], is_drawn: Callable[[Score], bool]) -> tuple[list[Score], ShownKind]:
    """The scores as a figure shows them, and the kind of their intervals.

    They have the intervals to draw, none if these are of different kinds; ranges over trainings take precedence over
    other intervals. Their notes are all that the figure says of them: also the kind of the interval, where these are
    mixed.

    Args:
        is_drawn: whether the figure draws the interval of a score.
    """

    def has_interval(score: Score) -> bool:
        return score.interval is not None and score.value is not None and is_drawn(score)

    kinds = [score.kind for score in scores if has_interval(score)]
    kind = ShownKind.of([kind for kind in kinds if kind.trainings] or kinds)
    return [
        replace(
            score,
            interval=score.interval if has_interval(score) and score.kind == kind.kind else None,
            notes=score.all_notes if kind.mixed else score.remarks,
        )
        for score in scores
    ], kind


def group_by_run(scores: Sequence[Score]) -> dict[str, Series]:
    """Run -> name of a layer -> its scores, in the order of the scores.

    Args:
        scores: from `scores_of_metric`.
    """
    names = names_by_layer(score.ranked for score in scores)
    runs: dict[str, Series] = {}
    for score in scores:
        layer = runs.setdefault(score.run, {}).setdefault(names[score.ranked], {})
        layer[score.epoch, score.split] = score
    return runs


def scores_by_split(scores: Sequence[Score]) -> list[dict[str, Score]]:
    """Split -> score, for each run, layer and epoch.

    Args:
        scores: from `scores_of_metric`.
    """
    layers = [layer for series in group_by_run(scores).values() for layer in series.values()]
    return [
        {score.split: score for score in epoch_scores}
        for layer in layers
        for _, epoch_scores in groupby(layer.values(), key=lambda score: score.epoch)
    ]


def scores_in(series: Series) -> list[Score]:
    """All scores of some layers."""
    return [score for layer in series.values() for score in layer.values()]


def ranked_of(layer: Layer) -> RankedLayer:
    """The layer that some scores are of."""
    return next(iter(layer.values())).ranked


def percent(score: Score | None) -> float | None:
    """The value in percent; None without a valid one."""
    return None if score is None or score.value is None else 100 * score.value


def drawn_percents(scores: Iterable[Score], splits: Collection[str]) -> list[float]:
    """The valid values and the ends of intervals of some splits, in percent."""
    scores = [score for score in scores if score.split in splits]
    values = [100 * score.value for score in scores if score.value is not None]
    return values + [end for score in scores if score.interval for end in score.interval.percent]


def layer_names_of(series: Series) -> list[str]:
    """The measured layers without their pools and post-processing, in network order; `A+B` is A and B."""
    return list(dict.fromkeys(name for layer in series.values() for name in ranked_of(layer).layer.layer.split("+")))


def names_in_order(runs: Mapping[str, Series]) -> list[str]:
    """Every layer of the runs once, in network order; one that only a later run has follows its predecessor there."""
    names: list[str] = []
    for series in runs.values():
        position = 0
        for name in series:
            if name not in names:
                names.insert(position, name)
            position = names.index(name) + 1
    return names


def default_layers(
    runs: Mapping[str, Series], embeddings: Mapping[str, RankedLayer], data: Mapping[str, DataFacts]
) -> list[RankedLayer]:
    """At most five layers of each network, the same for all its runs: all there are, or the `headline_layers`.

    Args:
        runs: run -> its layers. The best on validation is that of the mean over the runs, each at its last epoch.
        embeddings: run -> its embedding layer where that is known; of several the last is shown.
        data: run -> its network, where that is known.
    """
    groups = group_by_network({run: layer_names_of(series) for run, series in runs.items()}, data)
    layers = [ranked for group in groups for ranked in _few_layers({run: runs[run] for run in group}, embeddings)]
    return list(dict.fromkeys(layers))


def _few_layers(runs: Mapping[str, Series], embeddings: Mapping[str, RankedLayer]) -> list[RankedLayer]:
    """The layers of `default_layers` in network order, of runs of one network."""
    by_name: dict[str, RankedLayer] = {}
    validation: dict[RankedLayer, list[float]] = {}
    for series in runs.values():
        last_epoch = max((score.epoch for score in scores_in(series)), default=0)
        for name, layer in series.items():
            ranked = by_name.setdefault(name, ranked_of(layer))
            score = layer.get((last_epoch, "validation"))
            if score is not None and score.value is not None:
                validation.setdefault(ranked, []).append(score.value)
    layers = [by_name[name] for name in names_in_order(runs)]
    if len(layers) <= _ALL:
        return layers
    names = [ranked.layer.layer for ranked in layers]
    known_embeddings = [embeddings[run] for run in runs if run in embeddings and embeddings[run].layer.layer in names]
    embedding = max(known_embeddings, key=lambda ranked: names.index(ranked.layer.layer), default=None)
    return headline_layers(layers, {ranked: fmean(values) for ranked, values in validation.items()}, embedding)


def group_by_network(measured: Mapping[str, Collection[str]], data: Mapping[str, DataFacts]) -> list[list[str]]:
    """The runs in groups of one network each.

    Two runs are of one network if their networks have the same layers; of networks of one name, one may end in further
    layers, such as a fully connected one. Where the network of either run is unknown, the layers of one run must be
    among those of the other.

    Args:
        measured: run -> its layers.
        data: run -> its network, if known.
    """
    unknown = DataFacts("", {})
    networks = {run: data.get(run, unknown).layers or tuple(layers) for run, layers in measured.items()}
    groups: list[list[str]] = []
    for run in sorted(measured, key=lambda name: -len(networks[name])):  # stable: the largest network is first
        facts, layers = data.get(run, unknown), networks[run]
        for group in groups:
            other, longest = data.get(group[0], unknown), networks[group[0]]
            if facts.layers and other.layers:
                same = longest == layers or (facts.network == other.network and longest[: len(layers)] == layers)
            else:
                same = set(layers) <= set(longest)
            if same:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups


def add_search_to_run(scores: Sequence[Score]) -> list[Score]:
    """The scores, with post-processing and similarity added to the run's name if there are several."""
    has_several_searches = len({(score.ranked.post_processing, score.ranked.similarity) for score in scores}) > 1
    return [replace(score, run=search_name(score)) if has_several_searches else score for score in scores]


def search_name(score: Score) -> str:
    """Name of the panel of a run, post-processing and similarity."""
    post_processing = [] if score.ranked.post_processing == NO_POST_PROCESSING else [score.ranked.post_processing]
    return ", ".join([score.run, *post_processing, score.ranked.similarity])


def comparison_text(series: Series) -> str:
    """The similarities of a panel, for its title, after the post-processing that all layers share, if any."""
    layers = list(map(ranked_of, series.values()))
    post_processings = {ranked.post_processing for ranked in layers}
    common = post_processings - {NO_POST_PROCESSING} if len(post_processings) == 1 else ()
    return ", ".join([*common, *dict.fromkeys(ranked.similarity for ranked in layers)])


def common_lines(runs: Mapping[str, Series]) -> list[str]:
    """The notes that every score of a run has, such as missing images, or every value of a split; a line each.

    Then those of every value of a split after post-processing, such as that it is fitted on them.

    Those of all runs come first, once.
    """
    lines = {}
    for run, series in runs.items():
        scores = scores_in(series)
        everywhere = shared_notes(score.notes for score in scores) if scores else ()
        lines[run] = list(everywhere)
        for split in _splits(scores):
            # For a split without any valid value, `missing_lines` has the reasons.
            valid = [score.notes for score in scores if score.split == split and score.value is not None]
            shared = shared_notes(valid) if valid else ()
            lines[run] += [f"{split}: {note}" for note in shared if note not in everywhere]
            lines[run] += _post_processing_lines([score for score in scores if score.split == split], shared)
    return merge_lines(lines)


def _post_processing_lines(scores: Sequence[Score], shared: Collection[str]) -> list[str]:
    """The further notes that all values of a split after one of several kinds of post-processing share."""
    notes: dict[str, list[tuple[str, ...]]] = {}
    for score in scores:
        if score.value is not None:
            notes.setdefault(score.ranked.post_processing, []).append(score.notes)
    return [
        f"{post_processing}, {scores[0].split}: {note}"
        for post_processing, post_processing_notes in notes.items()
        if post_processing != NO_POST_PROCESSING and len(notes) > 1
        for note in shared_notes(post_processing_notes)
        if note not in shared
    ]


def merge_lines(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of some runs: first those that all share, once, then the others with the run's name."""
    first_run, *other_runs = lines.values()
    common = [line for line in first_run if all(line in other for other in other_runs)]
    return common + [f"{run}: {line}" for run, run_lines in lines.items() for line in run_lines if line not in common]


def shared_then_single(notes: Sequence[tuple[str, tuple[str, ...]]]) -> list[str]:
    """The notes that all values share, then the others after what they are of.

    Args:
        notes: what each value is of, and its notes.
    """
    common = shared_notes(value_notes for _, value_notes in notes)
    single = [f"{name}: {note}" for name, value_notes in notes for note in value_notes if note not in common]
    return [*common, *dict.fromkeys(single)]


def missing_lines(runs: Mapping[str, Series], splits: Sequence[str]) -> list[str]:
    """Notes on splits without scores, and on invalid values."""
    lines = []
    for run, series in runs.items():
        prefix = f"{run}: " if len(runs) > 1 else ""
        for split in splits:
            without = [name for name, layer in series.items() if all(scored != split for _, scored in layer)]
            if without:
                lines.append(
                    f"{prefix}no {split} scores" + ("" if len(without) == len(series) else f" of {', '.join(without)}")
                )
            faults: dict[tuple[str, str], list[int]] = {}
            for name, layer in series.items():
                for score in layer.values():
                    if score.split == split and score.value is None:
                        faults.setdefault((name, note_text(score.notes)), []).append(score.epoch)
            lines += [
                f"{prefix}not valid: {name}, {split}, epoch{'s' * (len(epochs) > 1)} {_ranges(epochs)}: {note}"
                for (name, note), epochs in faults.items()
            ]
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """`3, 12-30` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def layers_by_epoch_csv(scores: Sequence[Score]) -> str:
    """A line for each run, layer and epoch: the fractions of all splits, their intervals and notes.

    The cells of invalid values and absent intervals are empty. The notes have the intervals' kind.
    """
    scores = scores_of_metric(scores)
    splits, metric = _splits(scores), scores[0].metric
    ends = [f"{split} {metric} {end}" for split in splits for end in ("low", "high")]
    rows: list[list[object]] = [["run", "layer", "pool", "post_processing", "similarity", "epoch"]]
    rows[0] += [*(f"{split} {metric}" for split in splits), *ends, *(f"{split} note" for split in splits)]
    for by_split in scores_by_split(scores):
        first_score, cells = next(iter(by_split.values())), list(map(by_split.get, splits))
        rows.append([first_score.run, *first_score.ranked.as_columns().values(), first_score.epoch])
        rows[-1] += [score and score.value for score in cells]
        for score in cells:
            interval = score.interval if score and score.value is not None else None
            rows[-1] += [interval.low, interval.high] if interval else [None, None]
        rows[-1] += [note_text(score.all_notes if score else ()) for score in cells]
    return csv_text(rows)


def _splits(scores: Iterable[Score]) -> list[str]:
    names = dict.fromkeys(score.split for score in scores)
    return sorted(names, key=lambda split: [*SPLITS, split].index(split))

"""The findings of runs in sentences with intervals, from stored ranks: the embedding against two other layers.

Neither is chosen on test, which would cause selection bias: the layer before the embedding is fixed in advance, and the
best on validation is chosen on other classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError
from layerprobe.values.best import best_layer, best_text, tied_text
from layerprobe.values.facts import SELECTION, chosen_on_text, epoch_text
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.compare import compare_layers
from layerprobe.workflow.compare.comparison import Comparison, sentence, short_text, value_text
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.facts import data_facts, find_indistinguishable
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.references import (
    LastTwo,
    RankedSplit,
    last_two,
    open_ranked_split,
    probe_fix,
    require_same_queries,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import trains_on_train

METRIC = "R@1"


@dataclass(frozen=True, eq=False)
class FindingInputs:
    """The inputs of a finding on a run.

    Args:
        test: its last epoch that is ranked and scored, on unseen classes.
        train: the same epoch on the training classes; None where it is not ranked there.
        validation: the same epoch on held-out classes; None likewise.
        same: the embedding under other names, such as a module `head` that gives the model's output.
    """

    test: RankedSplit
    train: RankedSplit | None
    validation: RankedSplit | None
    layers: LastTwo
    same: frozenset[LayerKey] = frozenset()

    @property
    def selection(self) -> RankedSplit | None:
        """The classes on which a layer is chosen: of validation, else of train where they are unseen."""
        unseen = self.train is not None and not trains_on_train(self.train.record)
        return self.train if self.validation is None and unseen else self.validation

    @property
    def name(self) -> str:
        """The layer before the embedding in a sentence."""
        probed = (
            "layer probed before the embedding" if not self.same else "layer probed that differs from the embedding"
        )
        description = "the layer before the embedding" if self.layers.adjacent else f"the last {probed}"
        return f"{self.test.name(self.layers.before)}, {description},"


def inputs_of(run: Run) -> FindingInputs:
    """The inputs of a finding on a run."""
    record = run.read()
    if record.network is None:
        raise RecipeError(
            "it is not known which layer is the embedding",
            fix=f"Name two layers of {run.name} to layerprobe compare",
        )
    scored = {score.epoch for score in run.scores() if score.split == "test"}
    epochs = [epoch for epoch in run.ranked_epochs("test") if epoch in scored]
    ranked_split = open_ranked_split(run, epochs[-1] if epochs else None, "test")
    same = equal_layers(run, ranked_split.epoch, "test", record.network.embedding.layer)
    other_layers = [ranked for ranked in ranked_split.layers if ranked.layer not in same]
    pair = last_two(record, other_layers)
    if pair is None:
        name = record.network.embedding.layer
        message = f"the embedding {name} and a layer before it are not both ranked at epoch {ranked_split.epoch}"
        raise DataError(message, fix=probe_fix(run, record, ranked_split.epoch, "test"))
    train, validation = (
        open_ranked_split(run, ranked_split.epoch, split) if ranked_split.epoch in run.ranked_epochs(split) else None
        for split in ("train", "validation")
    )
    return FindingInputs(ranked_split, train, validation, pair, same)


def findings_of(
    inputs: Sequence[FindingInputs], layers: Sequence[BestOnValidation | None], metric: str = METRIC
) -> list[str]:
    """The findings of a run, or over trainings of one experiment with one epoch and the same two layers.

    Each layer is compared with the embedding without post-processing, and each of the two at its best post-processing
    on validation; p is corrected for all these comparisons.

    Args:
        layers: each None for the layer before the embedding.
    """
    named_layers = [_choose_layer(inputs[0], chosen) for chosen in layers]
    raw = [(layer, inputs[0].layers.embedding) for layer, _ in named_layers]
    processed = [_post_process(inputs, pair) for pair in raw]
    all_pairs = list(dict.fromkeys([*raw, *(pair for pair in processed if pair is not None)]))
    test_splits = [run_inputs.test for run_inputs in inputs]
    comparisons = dict(zip(all_pairs, _compare(test_splits, all_pairs, metric), strict=True))
    train_splits = [run_inputs.train for run_inputs in inputs if run_inputs.train is not None]
    on_train = [None] * len(raw) if len(train_splits) < len(inputs) else _compare(train_splits, raw, metric)
    trained = any(trains_on_train(ranked_split.record) for ranked_split in train_splits)
    classes, sentences = "training classes" if trained else SELECTION, []
    for (_, name), pair, processed_pair, seen_comparison in zip(named_layers, raw, processed, on_train, strict=True):
        text = sentence(comparisons[pair], (name, f"the embedding {comparisons[pair].b.name}"))
        if seen_comparison is not None and seen_comparison.values is not None:
            before, embedding = (value_text(value, share=True) for value in seen_comparison.values)
            on_the_mean = " on the mean" if seen_comparison.seeds else ""
            text += f" On the {classes} they reach {before} against {embedding}{on_the_mean}."
        text += "".join(f" {note}." for note in comparisons[pair].unlike)
        if processed_pair is not None:
            text += f" Each at its best post-processing on validation: {short_text(comparisons[processed_pair])}."
        sentences.append(text)
    return sentences


def _compare(
    splits: Sequence[RankedSplit], pairs: Sequence[tuple[RankedLayer, RankedLayer]], metric: str
) -> list[Comparison]:
    """Compare pairs of layers in a run, or over several trainings."""
    for ranked_split in splits[1:]:
        require_same_queries(splits[0], ranked_split)
    return compare_layers([(ranked_split, ranked_split) for ranked_split in splits], pairs, metric)


@dataclass(frozen=True)
class BestOnValidation:
    """The best of `among` layers on validation or unseen training classes; a layer with several pools counts once.

    Args:
        equals: how many of them have its recall, itself among them.
    """

    layer: RankedLayer
    among: int
    split: str = "validation"
    equals: int = 1


def choose_on_validation(inputs: Sequence[FindingInputs]) -> BestOnValidation | None:
    """The layer with the best mean recall on validation over trainings of one experiment; the first of equals.

    Returns:
        None without exact ranks for K = 1 on validation in all of them, and where the best is the embedding or the
        layer before it.
    """
    ranked_splits = [ranked_split for run_inputs in inputs for ranked_split in (run_inputs.test, run_inputs.selection)]
    layers = [
        ranked
        for ranked in inputs[0].test.layers
        if (ranked.post_processing, ranked.similarity) == (NO_POST_PROCESSING, inputs[0].test.similarity)
        and "+" not in ranked.layer.layer
        and ranked.layer not in inputs[0].same
        and all(ranked_split is not None and ranked in ranked_split.stored.ranks for ranked_split in ranked_splits)
    ]
    held_out = [run_inputs.selection for run_inputs in inputs if run_inputs.selection is not None]
    if not layers or len(held_out) < len(inputs):
        return None
    if any(ranked_split.stored.ranks[ranked].open([1]).any() for ranked_split in held_out for ranked in layers):
        return None
    recalls = {
        ranked: sum(ranked_split.stored.ranks[ranked].recall(1) for ranked_split in held_out) for ranked in layers
    }
    best = max(layers, key=recalls.__getitem__)
    if best in (inputs[0].layers.before, inputs[0].layers.embedding):
        return None
    equals = {ranked.layer.layer for ranked in layers if recalls[ranked] == recalls[best]}
    return BestOnValidation(best, len({ranked.layer.layer for ranked in layers}), held_out[0].split, len(equals))


def _choose_layer(run_inputs: FindingInputs, chosen: BestOnValidation | None) -> tuple[RankedLayer, str]:
    """The layer compared with the embedding, and its name in a sentence."""
    if chosen is None:
        return run_inputs.layers.before, run_inputs.name
    name = run_inputs.test.name(chosen.layer)
    tie_text = f" {tied_text(chosen.equals)}," if chosen.equals > 1 else ""
    return chosen.layer, f"{name}, the best of {chosen.among} layers on {chosen_on_text(chosen.split)},{tie_text}"


def _post_process(
    inputs: Sequence[FindingInputs], pair: tuple[RankedLayer, RankedLayer]
) -> tuple[RankedLayer, RankedLayer] | None:
    """Each layer after its best post-processing by mean recall on validation; None without ranks there, or any."""
    validation = [run_inputs.validation.stored.ranks for run_inputs in inputs if run_inputs.validation is not None]
    if len(validation) < len(inputs):
        return None
    tested = set.intersection(*({*run_inputs.test.stored.ranks} for run_inputs in inputs))
    best = []
    for layer in pair:
        processed = [
            ranked
            for ranked in validation[0]
            if (ranked.layer, ranked.similarity) == (layer.layer, layer.similarity)
            and not parse_chain(ranked.post_processing).draws
            and ranked in tested
            and all(ranked in ranks and not ranks[ranked].open([1]).any() for ranks in validation)
        ]
        if not processed:
            return None
        best.append(max(processed, key=lambda ranked: sum(ranks[ranked].recall(1) for ranks in validation)))
    processed_pair = (best[0], best[1])
    return None if processed_pair == pair else processed_pair


def best_on_validation(run: Run, scores: Sequence[Score], labels: Mapping[Any, str]) -> str:
    """The best layer at the last epoch, and its test recall; empty where only test could choose it."""
    epoch = max((score.epoch for score in scores if score.split == "test"), default=None)
    epoch_scores = [
        s for s in scores if (s.epoch, s.metric, s.ranked.post_processing) == (epoch, METRIC, NO_POST_PROCESSING)
    ]
    layers = list(dict.fromkeys(score.ranked for score in epoch_scores))
    recalls, data = {(score.split, score.ranked): score.value for score in epoch_scores}, data_facts(run, scores)
    values = {
        split: [recalls.get((split, layer)) for layer in layers] for split in data.chosen_on([NO_POST_PROCESSING])
    }
    best = best_layer(values)
    if epoch is None or best is None or best.split == "test":
        return ""
    indistinguishable = find_indistinguishable(run, epoch_scores, METRIC, data)
    near_labels = (
        None if indistinguishable is None else [labels[layer] for layer in layers if layer in indistinguishable]
    )
    text = best_text(best, [labels[layer] for layer in layers], values, near_labels)
    return f"{run.name}, {epoch_text(epoch, data)}: {text}."


@dataclass(frozen=True)
class Findings:
    """The findings of some runs, with a line for each run that has none."""

    sentences: tuple[str, ...]
    missing: tuple[str, ...]


def findings(runs: Sequence[Run], metric: str = METRIC) -> Findings:
    """The findings of runs in their order; trainings of an experiment under several seeds share them."""
    inputs: dict[str, FindingInputs] = {}
    missing: list[str] = []
    for run in runs:
        try:
            inputs[run.name] = inputs_of(run)
        except LayerprobeError as error:
            missing.append(f"{run.name}: no finding: {error}")
    sentences: list[str] = []
    groups = _group_by_experiment(inputs.values())
    for group in groups:
        try:
            chosen = choose_on_validation(group)
            # Two sentences for each of several runs would be more than anybody reads first.
            layers = (chosen, None) if chosen is not None and len(groups) == 1 else (chosen,)
            sentences += findings_of(group, layers, metric)
        except LayerprobeError as error:
            names = ", ".join(run_inputs.test.run.name for run_inputs in group)
            missing.append(f"{names}: no finding: {error}")
    return Findings(tuple(sentences), tuple(missing))


def _group_by_experiment(inputs: Iterable[FindingInputs]) -> list[list[FindingInputs]]:
    """Group trainings of one experiment by seed; further runs of one seed are groups of their own."""
    groups: dict[tuple[object, ...], dict[int, FindingInputs]] = {}
    inputs = list(inputs)
    names = experiments_of(run_inputs.test.run for run_inputs in inputs).names
    for run_inputs in inputs:
        record, ranked_split = run_inputs.test.record, run_inputs.test
        group = groups.setdefault(
            (names[ranked_split.run], ranked_split.epoch, run_inputs.layers, ranked_split.stored.ids), {}
        )
        if record.seed in group:
            group = groups.setdefault((ranked_split.run.name,), {})
        group[record.seed] = run_inputs
    return [[group[seed] for seed in sorted(group)] for group in groups.values()]

"""The answer of a probe: its best layer against the embedding, from stored ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from layerprobe.statistics.bootstrap import is_significant_band
from layerprobe.system.errors import DataError, LayerprobeError
from layerprobe.system.wording import command_text, wrapped
from layerprobe.tables.tables import Answer, Lead, TextTable, answer_table
from layerprobe.values.intervals import Difference, Interval
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import UNSEEN, Score
from layerprobe.workflow.compare.compare import compare_layers
from layerprobe.workflow.run.facts import bands_of_best, data_facts, first_recall
from layerprobe.workflow.run.references import embedding_among, last_two, open_ranked_split
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import selected_line


def probe_answer(run: Run, answer: Answer) -> TextTable:
    """The answer as a table, with the layer that `choose` selected, if that is another one."""
    table = answer_table(answer)
    if answer.best is None:
        return table
    row = answer.best[0]
    line = selected_line(run, answer.names[row], row, answer.raw[0].epoch)
    return replace(table, notes=(*table.notes, *wrapped(line)))


def answer_of(run: Run, scores: Sequence[Score]) -> Answer:
    """What a probe says of a run at the last epoch of its scores."""
    last_epoch = max(score.epoch for score in scores)
    last_scores = [score for score in scores if score.epoch == last_epoch]
    metric, data = first_recall(last_scores), data_facts(run, last_scores)
    answer = Answer(last_scores, metric, data)
    with contextlib.suppress(DataError):  # scores can be shown when the record cannot be read
        record = run.read()
        pair, rows = last_two(record, answer.names), answer.names
        answer = replace(
            answer,
            embedding=embedding_among(record, rows),
            embedding_name=record.network.embedding.layer if record.network else "",
            before=pair.before if pair else None,
        )
    best, from_best = answer.best, bands_of_best(run, answer.raw, metric, data)
    if from_best is not None:
        near = tuple(layer for layer, band in from_best.items() if not is_significant_band(band))
        answer = replace(answer, indistinguishable=near)
    if best is None or answer.embedding is None or best[0] == answer.embedding:
        return answer
    return _with_lead(run, answer, best[0], best[1].split, (from_best or {}).get(answer.embedding))


def _with_lead(run: Run, answer: Answer, best: RankedLayer, selected_on: str, band: Interval | None) -> Answer:
    """The answer with the best layer's difference to the embedding: on test as `compare` has it.

    Where the best was selected on the last split itself, its interval is the simultaneous band instead.
    """
    embedding, split = answer.embedding, UNSEEN if UNSEEN in answer.splits else selected_on
    if embedding is None:
        return answer
    values = [score.value if (score := answer.cells.get((row, split))) else None for row in (best, embedding)]
    if values[0] is None or values[1] is None:
        return answer
    difference = Difference(values[0] - values[1])
    if split == selected_on:
        if band is not None:
            difference = replace(difference, low=band.low, high=band.high)
        epoch, kind = answer.raw[0].epoch, answer.cells[best, split].kind
        flags = [] if split == UNSEEN else ["--split", split]
        flags += [] if answer.metric == "R@1" else ["--metric", answer.metric]
        flags += [] if kind.cluster is None else ["--cluster", kind.cluster]
        number = "" if epoch == run.ranked_epochs(split)[-1] else f"#{epoch}"
        references = [f"{run.name}{number}:{row}" for row in (best, embedding)]
        command = command_text("compare", *references, *flags, cache=run.folder.parent)
        return replace(answer, lead=Lead(split, difference, len(answer.names) if band else 0), command=command)
    with contextlib.suppress(LayerprobeError):  # its ranks are missing: then there is no interval
        ranked_split = open_ranked_split(run, answer.raw[0].epoch, split)
        kind = answer.cells[best, split].kind
        (comparison,) = compare_layers([(ranked_split, ranked_split)], [(best, embedding)], answer.metric, kind)
        difference = comparison.difference or difference
    return replace(answer, lead=Lead(split, difference))

"""A search as text and as JSON has it: what was chosen, and by how many trials the order of methods changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from layerprobe.system.wording import as_duration, as_size
from layerprobe.tables.tables import TextTable
from layerprobe.values.scores import is_fraction
from layerprobe.workflow.study.over import ends_text, over_text, value_text
from layerprobe.workflow.study.search import Method, Outcome, Searched, SearchPlan, SearchTable
from layerprobe.workflow.study.study import about_lines, cell_values, key_columns, key_values

_TEST_CHOSE_NOTHING = "test chose nothing: trials and epochs were selected on the validation classes alone"


def orders(table: SearchTable) -> list[tuple[Mapping[str, Any], list[list[str]]]]:
    """For each cell of the grid the methods by the mean on test, best first, after each budget.

    Methods without a value are last; equal ones keep the order of the file.
    """
    return [(values, [_order(_at(table, values), number) for number in range(len(table.search.budgets))])
            for values in table.study.cells]  # fmt: skip


def _at(table: SearchTable, values: Mapping[str, Any]) -> list[Searched]:
    return [item for item in table.methods if item.method.values == values]


def _order(searched: Sequence[Searched], number: int) -> list[str]:
    def below(item: Searched) -> float:
        test = item.outcomes[number].test
        return float("inf") if test is None or test.mean is None else -test.mean

    return [item.method.variant.name for item in sorted(searched, key=below)]


def text_tables(table: SearchTable) -> list[TextTable]:
    """What each method was chosen as, and what each budget would have chosen; fractions in percent."""
    return [_chosen_table(table), _budget_table(table)]


def _chosen_table(table: SearchTable) -> TextTable:
    study, search, metric = table.study, table.search, table.study.end.table or ""
    keys = key_columns(study)
    outcomes = [item.outcomes[-1] for item in table.methods]
    seeds, count = len(study.runs.seeds), len(keys)
    question, *paper = about_lines(study) or [""]
    held = f"{100 * search.validation_classes:g} % of the training classes were held out for the trials"
    numbers = f"mean of {seeds} trainings" if seeds > 1 else "one training"
    diverged = [_diverged_text(item) for item in table.methods]
    return TextTable(
        (*keys, "trial", "chosen", "epochs", "validation", "test", "before training"),
        tuple(
            (*key_values(study, item.method.cell), *_chosen_texts(item, outcome, metric))
            for item, outcome in zip(table.methods, outcomes, strict=True)
        ),
        numbers=frozenset([count, *range(count + 2, count + 6)]),
        heading=(
            f"{study.name}: {study.about.title}",
            f"{_unit(metric)} of {_layers(table)}, the best of {_trials(search.budgets[-1])} of each method",
            f"on test: trained anew on all training classes, {numbers}",
            *(["in brackets: 95 % interval of the mean over trainings, on these test classes"] if seeds > 1 else []),
        ),
        notes=tuple(filter(None, [question, held, _TEST_CHOSE_NOTHING, *diverged, *paper, study.caveat])),
        intervals={count + 4: tuple(ends_text(outcome.test, metric) for outcome in outcomes)} if seeds > 1 else {},
        multiline=frozenset([count + 1]),
    )


def _chosen_texts(item: Searched, outcome: Outcome, metric: str) -> tuple[str, ...]:
    if outcome.selected is None:
        return ("", "no trial has a value", "", "", "", "")
    trial = item.method.trials[outcome.selected.trial - 1]
    return (
        str(outcome.selected.trial),
        "\n".join(_values_text(trial.values)),
        str(outcome.selected.epoch),
        value_text(outcome.selected.validation, metric),
        over_text(outcome.test, metric),
        over_text(outcome.before, metric),
    )


def _values_text(values: Mapping[str, Any]) -> list[str]:
    return [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in values.items()]


def _diverged_text(item: Searched) -> str:
    numbers = [str(number) for number, curve in enumerate(item.curves, start=1) if not curve.validation]
    if not numbers:
        return ""
    which = f"trial{'s' * (len(numbers) > 1)} {', '.join(numbers)}"
    return f"diverged, counted as the worst: {': '.join(filter(None, (str(item.method.cell), which)))}"


def _budget_table(table: SearchTable) -> TextTable:
    study, search, metric = table.study, table.search, table.study.end.table or ""
    keys, budgets = key_columns(study), search.budgets
    has_regret = search.trials_on_test
    columns = [(number, "test") for number in range(len(budgets))]
    headers = [f"test after\n{_trials(budget)}" for budget in budgets]
    headers += [f"regret after\n{_trials(budget)}" for budget in budgets] if has_regret else []
    regret = ["regret: the best value on test of the trials, at any epoch, less that of the one selected"]
    return TextTable(
        (*keys, *headers),
        tuple(
            (
                *key_values(study, item.method.cell),
                *(over_text(item.outcomes[number].test, metric) for number, _ in columns),
                *(_regret_text(outcome, metric) for outcome in item.outcomes if has_regret),
            )
            for item in table.methods
        ),
        numbers=frozenset(range(len(keys), len(keys) + len(headers))),
        heading=(f"{_unit(metric)} on test by the number of trials of each method", *(regret if has_regret else [])),
        notes=(*_order_lines(table), *([_TEST_CHOSE_NOTHING] if has_regret else [])),
        intervals={
            number: tuple(ends_text(item.outcomes[number - len(keys)].test, metric) for item in table.methods)
            for number in range(len(keys), len(keys) + len(budgets))
            if any((over := item.outcomes[number - len(keys)].test) and over.interval for item in table.methods)
        },
    )


def _regret_text(outcome: Outcome, metric: str) -> str:
    return "" if outcome.regret is None else value_text(outcome.regret, metric)


def _order_lines(table: SearchTable) -> list[str]:
    if len(table.study.variants) < 2:
        return []
    lines = []
    for values, of_budgets in orders(table):
        where = f" at {', '.join(_values_text(values))}" if values else ""
        for budget, order in zip(table.search.budgets, of_budgets, strict=True):
            lines.append(f"order{where} after {_trials(budget)}: {', '.join(order)}")
        if len(of_budgets) > 1:
            verb = "changes" if _changes(of_budgets) else "does not change"
            lines.append(f"the order of the methods{where} {verb} with the number of trials")
    return lines


def _changes(of_budgets: Sequence[Sequence[str]]) -> bool:
    return any(order != of_budgets[0] for order in of_budgets)


def search_values(table: SearchTable) -> dict[str, Any]:
    """The tables as JSON has them, with every trial and the settings of what was trained anew."""
    study, search = table.study, table.search
    ends = {"small": study.is_small, "metric": study.end.table, "seeds": study.runs.seeds}
    return {
        "study": study.name,
        **study.about.model_dump(),
        **ends,
        "search": search.model_dump(mode="json"),
        "methods": [
            {
                **cell_values(study, item.method.cell),
                "trials": [
                    {
                        "values": trial.values,
                        "run": trial.training.run,
                        "diverged": not curve.validation,
                        "validation": curve.validation,
                        "test": curve.test,
                    }
                    for trial, curve in zip(item.method.trials, item.curves, strict=True)
                ],
                "budgets": [_outcome_values(outcome) for outcome in item.outcomes],
            }
            for item in table.methods
        ],
        "orders": [
            {"values": values, "orders": of_budgets, "changes": _changes(of_budgets)}
            for values, of_budgets in orders(table)
        ],
    }


def _outcome_values(outcome: Outcome) -> dict[str, Any]:
    over = {"test": outcome.test, "before": outcome.before}
    return {
        "budget": outcome.budget,
        "selected": outcome.selected,
        "runs": [training.run for training in outcome.trainings],
        "recipe": outcome.trainings[0].recipe if outcome.trainings else None,
        "settings": [training.settings for training in outcome.trainings],
        **{name: x and {"mean": x.mean, "interval": x.interval, "trainings": x.values} for name, x in over.items()},
        "regret": outcome.regret,
    }


def plan_texts(plan: SearchPlan) -> tuple[TextTable, str]:
    """The trials of a search, and how much there is to train."""
    study, keys = plan.study, key_columns(plan.study)
    rows = [
        (*key_values(study, method.cell), str(number), "\n".join(_values_text(trial.values)), state)
        for method in plan.methods
        for number, trial in enumerate(method.trials, start=1)
        for state in ["done" * (trial.training.run in plan.ended)]
    ]
    total = len(plan.methods) * plan.search.budgets[-1]
    heading = [f"{study.name}: {study.about.title}", f"{total} trials, then at most {plan.retrainings} retrainings"]
    if len(rows) < total:
        heading.append("further trials are suggested by Optuna after those before them")
    text = f"time, memory and disk need {' '.join(f'--data {usage}' for usage in plan.lacking)}"
    if (estimate := plan.estimate) is not None:
        text = (
            f"{study.name}: the trials that are left take about {as_duration(estimate.seconds)},"
            f" {as_size(estimate.memory)} of memory, {as_size(estimate.disk)} on disk"
            f" ({as_size(estimate.free)} free); a retraining as long as a trial, at most"
        )
    columns = (*keys, "trial", "values", "")
    table = TextTable(
        columns,
        tuple(rows),
        numbers=frozenset([len(keys)]),
        heading=tuple(heading),
        multiline=frozenset([len(keys) + 1]),
    )
    return table, text


def plan_values(plan: SearchPlan) -> dict[str, Any]:
    """As JSON has it."""
    return {
        "run": plan.study.name,
        "estimate": plan.estimate,
        "missing_data": plan.lacking,
        "trials": len(plan.methods) * plan.search.budgets[-1],
        "retrainings": plan.retrainings,
        "methods": [
            {
                **cell_values(plan.study, method.cell),
                "trials": [_trial_values(plan, method, i) for i in range(len(method.trials))],
            }
            for method in plan.methods
        ],
    }


def _trial_values(plan: SearchPlan, method: Method, index: int) -> dict[str, Any]:
    trial = method.trials[index]
    return {"values": trial.values, "run": trial.training.run, "done": trial.training.run in plan.ended}


def _unit(metric: str) -> str:
    return f"{metric} in %" if is_fraction(metric) else metric


def _layers(table: SearchTable) -> str:
    return ", ".join(table.study.layers or ())


def _trials(count: int) -> str:
    return f"{count} trial{'s' * (count > 1)}"

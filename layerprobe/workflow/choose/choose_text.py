"""What follows a `Choice` in text: the table of `--index`, and the next command."""

from __future__ import annotations

from layerprobe.post_processing.chain import parse_chain
from layerprobe.tables.tables import TextTable
from layerprobe.values.choice import Choice
from layerprobe.values.costs import EXACT, IndexCosts
from layerprobe.workflow.run.runs import Run


def index_table(costs: IndexCosts) -> TextTable:
    """A row for each index, the exact search first."""
    rows = tuple(
        (
            cost.kind,
            f"{100 * cost.recall:.1f}",
            "" if cost.kind == EXACT else f"{100 * cost.difference:+.2f}",
            f"{100 * cost.nearest:.1f}",
            f"{cost.bytes_per_image:,.0f}",
            f"{cost.ms_alone:.3f}",
            f"{cost.ms_batch:.3f}",
            f"{cost.build_seconds:.1f}",
        )
        for cost in costs.rows
    )
    trained = "" if costs.trained_on is None else f"; ivfpq is trained on {costs.trained_on:,} other images"
    parameters = [
        f"{cost.kind}: {', '.join(f'{name} {value}' for name, value in cost.parameters.items() if name != 'training')}"
        for cost in costs.rows
        if cost.parameters
    ]
    return TextTable(
        ("index", f"{costs.metric} %", "points", "nearest %", "bytes", "ms alone", "ms in batch", "build s"),
        rows,
        numbers=frozenset(range(1, 8)),
        heading=(
            f"indexes of {costs.layer}: {costs.items:,} test images, {costs.queries:,} queries for"
            f" {costs.neighbours} neighbours each{trained}",
        ),
        notes=(
            "nearest: queries whose first result is the exact nearest neighbour; bytes: of the file, an image",
            f"ms: CPU time of faiss, {costs.threads} thread{'s' * (costs.threads != 1)} of {costs.cpu}; exact: recall"
            " by layerprobe, the rest as flat",
            *parameters,
            *costs.notes,
        ),
    )


def next_step(choice: Choice, run: Run) -> str:
    """The line that names the next command."""
    return f"next: {next_command(choice, run)}"


def next_command(choice: Choice, run: Run) -> str:
    """The command that exports what was chosen."""
    selected = choice.selected
    # Fitted within folds, it is not ranked under its name: export takes the stored choice.
    in_folds = choice.chosen.split == "test" and parse_chain(selected.post_processing).fits_on_train
    layer = () if in_folds or choice.budget is not None else ("--layer", selected.name)
    return run.command("export", "--epoch", str(selected.epoch), *layer, "--out", f"{run.name}-export")

"""layerprobe data list and data check: the data sets, and whether a copy of one is sound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import Output
from layerprobe.cli.requests import with_options
from layerprobe.system.options import Flag, Workers
from layerprobe.system.wording import one_line

if TYPE_CHECKING:
    from layerprobe.data.check import Finding
    from layerprobe.tables.tables import TextTable
    from layerprobe.workflow.manage.data import Checked

_EXAMPLES = 3  # images that are named in a row of errors or remarks

group = typer.Typer(name="data", help="List the data sets, or check a copy of one.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.add_typer(group)


@group.command("list")
@with_options
def list_(output: Output) -> None:
    """List the data sets: what each needs, and which recipes use it."""
    from layerprobe.tables.tables import plain_table
    from layerprobe.workflow.manage.data import list_data

    values, rows = [], []
    for name, (spec, recipes) in list_data().items():
        sizes = {split: {"images": size.images, "classes": size.classes} for split, size in spec.counts.items()}
        texts = {"usage": spec.usage(name), "holds": spec.holds, "layout": spec.layout, "where": spec.where}
        values.append({"name": name, **texts, "counts": sizes, "recipes": recipes})
        counts = [f"{split}: {size.images:,} of {size.classes:,} classes" for split, size in spec.counts.items()]
        needs = [spec.holds, *counts, f"needs {spec.layout}" if spec.layout else "", spec.where]
        rows.append((spec.usage(name), "\n".join(filter(None, needs)), "\n".join(map(one_line, recipes))))
    output.terminal().result({"data": values}, plain_table(("--data", "what it is", "recipes"), rows, multiline=(1, 2)))


@group.command()
@with_options
def check(
    *,
    data: Annotated[str, typer.Argument(metavar="NAME[:ROOT]", help="The data set, as for train --data.")],
    settings: Annotated[
        tuple[str, ...], Flag("Key of [data]; repeatable.", name="--set", metavar="data.KEY=VALUE")
    ] = (),
    workers: Workers = None,
    output: Output,
) -> None:
    """Find missing, broken, odd and duplicate images.

    Every image is read once. The size of each split is reported, too.
    """
    from layerprobe.workflow.manage.data import check_data

    terminal = output.terminal()
    checked = check_data(data, terminal, settings=settings, workers=workers)
    values = {
        "data": checked.data,
        "complete": checked.signal_number is None,
        "images": checked.images,
        "read": checked.read,
        "splits": checked.splits,
        "errors": [_value(finding) for finding in checked.errors],
        "remarks": [_value(finding) for finding in checked.remarks],
        "notes": checked.notes,
    }
    notes = [f"note: {note}" for note in checked.notes]
    # The summary comes first, because tables may be long.
    terminal.result(values, _summary(checked), *notes, *_tables(checked))
    if checked.signal_number is not None:
        raise typer.Exit(128 + checked.signal_number)
    if checked.errors:
        raise typer.Exit(3)


def _value(finding: Finding) -> dict[str, object]:
    return {key: value for key, value in asdict(finding).items() if key != "is_error"}


def _tables(checked: Checked) -> list[TextTable]:
    from layerprobe.tables.tables import plain_table

    sizes = [
        (s.split, f"{s.images:,}", f"{s.classes:,}", f"{s.fewest}-{s.most}", f"{s.singletons:,}")
        for s in checked.splits
    ]
    tables = [plain_table(("split", "images", "classes", "a class has", "classes of one"), sizes)]
    if checked.errors:
        tables.append(_faults("error", "what is wrong", checked.errors))
    if checked.remarks:
        tables.append(_faults("remark", "what is done", checked.remarks))
    return tables


def _faults(kind: str, column: str, findings: Sequence[Finding]) -> TextTable:
    from layerprobe.tables.tables import plain_table

    return plain_table((kind, "images", column, "such as"), _grouped(findings), multiline=(3,))


def _grouped(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """One row for each kind, as all images of a data set may be missing, or grey, or lie on the disk twice."""
    kinds: dict[str, list[Finding]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    rows = []
    for kind, of_kind in kinds.items():
        same_message = len({finding.message for finding in of_kind}) == 1
        same_fix = len({finding.fix for finding in of_kind}) == 1
        text = ". ".join(filter(None, [of_kind[0].message] * same_message + [of_kind[0].fix] * same_fix))
        examples = [_example(finding, with_message=not same_message) for finding in of_kind[:_EXAMPLES]]
        if len(of_kind) > _EXAMPLES:
            examples.append(f"and {len(of_kind) - _EXAMPLES:,} more, which --json names")
        count = sum(bool(finding.id) for finding in of_kind)
        rows.append((kind, f"{count:,}" if count else "", text, "\n".join(map(one_line, examples))))
    return rows


def _example(finding: Finding, *, with_message: bool) -> str:
    """The image of a finding, with its message where that differs from the others of its kind."""
    image = f"{finding.split}: {finding.id}" if finding.id else ""
    if not with_message:
        return image
    return f"{image} ({finding.message})" if image else finding.message


def _summary(checked: Checked) -> str:
    counts = f"errors: {len(checked.errors):,}, remarks: {len(checked.remarks):,}"
    if checked.signal_number is not None:
        return f"incomplete: {checked.read:,} of {checked.images:,} images were read when it was stopped; {counts}"
    return f"{checked.read:,} images were read; {counts}"

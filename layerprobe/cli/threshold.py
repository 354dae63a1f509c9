"""layerprobe threshold."""

from __future__ import annotations

from typing import Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Labels, Output, RunOrFeatures, feature_files
from layerprobe.cli.requests import with_options
from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag, split_names


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(threshold))


def threshold(
    *,
    name: RunOrFeatures = None,
    layer: Annotated[
        str | None,
        Flag("Layer and post-processing (default: what choose says).", metavar="L[@P][/R]"),
    ] = None,
    far: Annotated[str, Flag("False accept rates at which to set thresholds.", metavar="RATE,...")] = "1e-3,1e-2",
    cluster: Annotated[
        str | None,
        Flag("Intervals over the values of a column (parent: folders), not classes.", metavar="COLUMN"),
    ] = None,
    labels: Labels = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Set the similarity above which two images are of one class.

    Its false and true accept rates are measured on unseen classes. It is set on validation classes; without these on
    training classes that the network has not seen; of FEATURES without `split` on half of the classes.
    """
    from layerprobe.values.thresholds import require_rates
    from layerprobe.workflow.run.runs import find_run

    rates = tuple(dict.fromkeys(_rate(text) for text in split_names(far)))
    require_rates(rates)
    terminal = output.terminal()
    if files := feature_files([name] if name else [], labels):
        from layerprobe.workflow.choose.feature_files import read_user_features
        from layerprobe.workflow.threshold.threshold_features import threshold_of_features
        from layerprobe.workflow.threshold.threshold_text import threshold_table

        thresholds = threshold_of_features(
            read_user_features(*files, labels=labels, cluster=cluster), layer, rates, terminal
        )
        terminal.result(thresholds, threshold_table(thresholds))
        return
    run = find_run(cache, name)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.threshold.threshold import threshold as thresholds_of
    from layerprobe.workflow.threshold.threshold_text import threshold_table

    if name is None:
        terminal.say(f"run {run.name}")
    thresholds = thresholds_of(run, layer, rates, terminal, cluster=cluster)
    terminal.result(thresholds, threshold_table(thresholds))


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise RecipeError(f"--far {text}: not a number", fix="Write rates such as 1e-3,1e-2") from None

"""layerprobe threshold."""

from __future__ import annotations

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, Labels, Output, RunOrFeatures, feature_files
from layerprobe.cli.requests import with_options
from layerprobe.workflow.threshold.request import ThresholdRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(threshold))


def threshold(
    *,
    name: RunOrFeatures = None,
    request: ThresholdRequest,
    labels: Labels = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Set the similarity above which two images are of one class.

    Its false and true accept rates are measured on unseen classes. It is set on validation classes; without these on
    training classes that the network has not seen; of FEATURES without `split` on half of the classes.
    """
    from layerprobe.workflow.run.runs import find_run

    terminal, files = output.terminal(), feature_files([name] if name else [], labels)
    run = None if files else find_run(cache, name)

    # All that imports torch comes after what can be refused without it.
    from layerprobe.workflow.threshold.threshold import threshold as threshold_of_run
    from layerprobe.workflow.threshold.threshold import threshold_of_features, threshold_table

    if run is None:
        from layerprobe.workflow.choose.feature_files import read_user_features

        features = read_user_features(*files, labels=labels, cluster=request.cluster)
        thresholds = threshold_of_features(features, request, terminal)
    else:
        if name is None:
            terminal.say(f"run {run.name}")
        thresholds = threshold_of_run(run, request, terminal)
    terminal.result(thresholds, threshold_table(thresholds))

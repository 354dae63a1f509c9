"""choose --model: a pretrained model and a folder of images -> which layer to ship."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from layerprobe.system.errors import UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.values.layers import NO_REDUCTION
from layerprobe.values.records import RunRecord
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.half_whitened import half_whitened_layers
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import epochs_to_choose_among, split_to_choose_on
from layerprobe.workflow.train.frozen import frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest


def choose_model(frozen: FrozenRequest, request: ChooseRequest, listener: Listener) -> tuple[Run, Choice]:
    """Measure a model on images, as `layerprobe probe --model` does, and choose one of its layers.

    Candidates are all its layers with their default pools, raw and half-whitened: `l2+whiten:D:0.5+l2`, where D is the
    minimum of 128, the layer's dimensions and the rank of the features that it is fitted on. What is stored is not
    computed again.

    Returns:
        The model's run, and the choice.
    """
    run = frozen_run(frozen, listener)
    record = run.read()
    require_layers(record, request.layers)
    epochs_to_choose_among(run, record, request.epochs)
    split = split_to_choose_on(run, record, record.epochs)
    raw = ProbeRequest(
        layers=("*",), epochs=request.epochs, device=request.device, workers=frozen.workers, reduce=(NO_REDUCTION,)
    )
    scores = probe(run, raw, listener)
    layers = list(dict.fromkeys(score.ranked for score in scores if score.value is not None))
    fitted_on = FITTED_ON if FITTED_ON in record.manifests else split
    epoch = max((score.epoch for score in scores), default=0)
    further = half_whitened_layers(run, fitted_on, layers, epoch, cluster=request.cluster)
    if fitted_on != FITTED_ON:
        return run, choose_once([run], request, listener, further)
    for reduction in dict.fromkeys(ranked.reduction for ranked in further):
        expressions = tuple(str(ranked.layer) for ranked in further if ranked.reduction == reduction)
        probe(run, replace(raw, layers=expressions, reduce=(reduction,)), listener)
    return run, choose_once([run], request, listener)


def require_layers(record: RunRecord, candidates: Sequence[str]) -> None:
    """Check that names of candidates mean layers of the network, whatever their pools and reductions."""
    network_layers = () if record.network is None else record.network.layers
    for text in candidates:
        layer = re.split("[@/~]", text)[0]
        if not any(fnmatchcase(name, layer) for name in network_layers):
            raise UnknownNameError("layer", layer, network_layers)

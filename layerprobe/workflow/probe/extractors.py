"""Checkpoints and images -> stored features, of a single run or of an ensemble's members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from layerprobe import store
from layerprobe.data.loading import plain_batches
from layerprobe.measure.extraction import extract
from layerprobe.workflow.probe.probed_run import ProbedRun
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.features import Missing, RunFeatures

# Recorded with the features, since it may change their last bits; large enough for a GPU, small enough for a laptop.
BATCH_SIZE = 64

Tell = Callable[[Iterable[Tensor]], Iterator[Tensor]]  # passes batches of images on and tells of progress


class Extractor(Protocol):
    """Stores features that are missing."""

    def images(self, missing: Missing) -> int:
        """How many images will be read for it."""

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Compute and store the missing features of an epoch and split."""


@dataclass(eq=False)
class RunExtractor:
    """Extracts layers with the checkpoints of one run."""

    features: RunFeatures
    opened: ProbedRun
    workers: int
    _loaded: int | None = field(default=None, init=False)

    def images(self, missing: Missing) -> int:
        """Those of the split, unless nothing is missing."""
        return missing.images if missing.taps else 0

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Run the network on the split's images and store the outputs of the taps."""
        net, device = self.opened.net, self.opened.device
        if self._loaded != missing.epoch:
            load_net(self.features.run, missing.epoch, net)
            self._loaded = missing.epoch
        pixels = tell(
            plain_batches(self.features.dataset.splits[missing.split], batch_size=BATCH_SIZE, workers=self.workers)
        )
        normalise = from_recipe.build_normalise(self.opened.recipe, net.channels)
        batches = extract(net.module, missing.taps, pixels, normalise, device=device)
        columns = store.Columns(
            dims={tap.key: tap.dim for tap in missing.taps},
            device=str(device),
            batch_size=BATCH_SIZE,
            keep=missing.kept,
        )
        self.features.write(missing, columns, batches)

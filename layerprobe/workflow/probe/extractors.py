"""Checkpoints and images -> stored features, of a single run or of an ensemble's members."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from layerprobe import store
from layerprobe.data.splits import Dataset, contents_sha256
from layerprobe.measure.extraction import extract
from layerprobe.system.errors import DataError
from layerprobe.workflow.probe.probed_run import ProbedRun
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.features import Missing, RunFeatures

if TYPE_CHECKING:
    from torch import Tensor

    Tell = Callable[[Iterable[Tensor]], Iterator[Tensor]]  # passes batches of images on and tells of progress

# Recorded with the features, since it may change their last bits; large enough for a GPU, small enough for a laptop.
BATCH_SIZE = 64


class Extractor(Protocol):
    """Stores features that are missing."""

    def images(self, missing: Missing) -> int:
        """How many images will be read for it."""

    def decode(self) -> None:
        """Decode the images, where that is worth it; before any is extracted."""

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Compute and store the missing features of an epoch and split."""


@dataclass(eq=False)
class RunExtractor:
    """Extracts layers with the checkpoints of one run.

    Args:
        decoded: gives the data set of the features with its images decoded, where that is worth it.
        workers: data worker processes; None chooses.
    """

    features: RunFeatures
    opened: ProbedRun
    decoded: Callable[[], Dataset]
    workers: int | None
    _loaded: int | None = field(default=None, init=False)

    def images(self, missing: Missing) -> int:
        """Those of the split, unless nothing is missing."""
        return missing.images if missing.taps else 0

    @cached_property
    def _dataset(self) -> Dataset:
        return self.decoded()

    def decode(self) -> None:
        """Decode the images of all splits, where that is worth it."""
        _ = self._dataset

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Run the network on the split's images and store the outputs of the taps."""
        from layerprobe.data.loading import plain_batches

        split, class_names = self._dataset.splits[missing.split], self._dataset.class_names
        # The features were looked for by the images' hashes, before these were decoded.
        if contents_sha256(split, class_names) != self.features.manifest_sha256(missing.split):
            raise DataError(f"the {missing.split} images changed while they were read", fix="Run the command again")
        net, device = self.opened.net, self.opened.device
        if self._loaded != missing.epoch:
            load_net(self.features.run, missing.epoch, net)
            self._loaded = missing.epoch
        workers = from_recipe.choose_workers(self.workers, device)
        pixels = tell(plain_batches(split, batch_size=BATCH_SIZE, workers=workers))
        normalise = from_recipe.build_normalise(self.opened.recipe, net.channels)
        batches = extract(net.module, missing.taps, pixels, normalise, device=device)
        columns = store.Columns(
            dims={tap.key: tap.dim for tap in missing.taps},
            device=str(device),
            batch_size=BATCH_SIZE,
            keep=missing.kept,
        )
        self.features.write(missing, columns, batches)

"""Features that are stored post-processed alone, by a map that is fitted on the raw features of a sample of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from layerprobe.data.splits import Dataset
from layerprobe.data.subsets import random_subset
from layerprobe.post_processing.chain import parse_chain

_NOT_STORED = "raw features are not stored"


@dataclass(frozen=True)
class SampleFit:
    """The map, and the samples that it is fitted on.

    Args:
        post_processing: name of the map.
        count: images of a sample at most.
        seed: by which they are drawn.
        fitted_on: split -> the split whose sample its map is fitted on.
    """

    post_processing: str
    count: int
    seed: int
    fitted_on: Mapping[str, str]

    def sample_of(self, split: str) -> str:
        """The name of the sample that the map of a split is fitted on."""
        return f"{self.fitted_on[split]}~{self.count}"

    def samples(self, splits: Iterable[str]) -> list[str]:
        """The names of the samples of some splits, each once."""
        return list(dict.fromkeys(map(self.sample_of, splits)))

    def is_post_processed(self, split: str) -> bool:
        """Whether post-processed features are stored of a split; of a sample they are not."""
        return split in self.fitted_on

    def stored_as(self, split: str) -> str:
        """The name by which the features of a split, or of a sample, are stored."""
        return f"{split}~{self.post_processing}~{self.count}" if self.is_post_processed(split) else split

    def dim(self, split: str, dim: int) -> int:
        """The number of dimensions that features of `dim` dimensions are stored with."""
        return parse_chain(self.post_processing).dim(dim) if self.is_post_processed(split) else dim

    def with_samples(self, dataset: Dataset) -> Dataset:
        """The data set with the samples among its splits."""
        drawn = {
            self.sample_of(name): random_subset(dataset.splits[fitted], self.count, seed=self.seed)
            for name, fitted in self.fitted_on.items()
        }
        return replace(dataset, splits={**dataset.splits, **drawn})

    def notes(self, dataset: Dataset, split: str) -> list[str]:
        """What every number of a split has to say."""
        if not parse_chain(self.post_processing).fits:
            return [_NOT_STORED]
        fitted_on = self.fitted_on[split]
        count, total = len(dataset.splits[self.sample_of(split)]), len(dataset.splits[fitted_on])
        return [f"fitted on {count:,} of {total:,} {fitted_on} images", _NOT_STORED]

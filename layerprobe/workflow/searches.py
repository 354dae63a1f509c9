"""Each split of a run as it is searched: in what, by which rules, under which key, and with which features."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch

from layerprobe import store
from layerprobe.analysis import Features, ItemCounts
from layerprobe.keys import NO_REDUCTION, RankedLayer
from layerprobe.metrics.recall import chance_recall
from layerprobe.ranking.ranks import ENGINE
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.registry import REDUCTIONS, load
from layerprobe.retrieval import SearchRules
from layerprobe.scores import Subject
from layerprobe.workflow.features import RunFeatures
from layerprobe.workflow.measures import items_searched
from layerprobe.workflow.selection import FITTED_ON


@dataclass(frozen=True, eq=False)
class Searches:
    """The searches of a run: its stored features, and the rank files that they fill.

    Args:
        features: of the run.
        experiment: of the run.
        seed: of the run.
        device: where features are reduced and ranked.
    """

    features: RunFeatures
    experiment: str
    seed: int
    device: torch.device

    def gallery(self, split: str) -> str:
        """The split that a split's images are searched in."""
        return self.features.dataset.search_in.get(split, split)

    def rules(self, split: str) -> SearchRules | None:
        """What is right for a split's images, or taken out, where the class does not say."""
        return self.features.dataset.search_rules.get(split)

    def items(self, split: str) -> ItemCounts:
        """How many items each image of a split may find that are right, and how many that are wrong."""
        return items_searched(self.features.dataset, split)

    def subject(self, epoch: int, split: str, ranked: RankedLayer) -> Subject:
        """What is scored, with the notes that every number of it has."""
        return Subject(
            run=self.features.run.name,
            experiment=self.experiment,
            seed=self.seed,
            epoch=epoch,
            split=split,
            ranked=ranked,
            notes=(*self.features.dataset.notes, *self.features.dataset.search_notes.get(split, ())),
        )

    def key_of(self, epoch: int, split: str) -> Callable[[RankedLayer], store.RankKey]:
        """What the ranks of a layer must be made from."""
        gallery = self.gallery(split)
        shared = store.RankKey(
            queries=self.features.key(epoch, split),
            gallery=None if gallery == split else self.features.key(epoch, gallery),
            search_sha256=self.features.search_sha256(split),
            tie_window=TIE_WINDOW,
            engine=ENGINE,
        )
        return lambda ranked: replace(shared, reduction=self._fitted_on(epoch, ranked.reduction))

    def read(self, epoch: int, split: str) -> dict[RankedLayer, store.RankEntry]:
        """The stored ranks that hold."""
        return store.read_ranks(self.features.run.rank_file(epoch, split), self.key_of(epoch, split))

    def stale(self, epoch: int, split: str) -> set[RankedLayer]:
        """The layers whose stored ranks hold no longer, and leave the file when it is written."""
        return store.stale_ranks(self.features.run.rank_file(epoch, split), self.key_of(epoch, split))

    def write(self, epoch: int, split: str, entries: Mapping[RankedLayer, store.RankEntry]) -> None:
        """Store ranks, in place of all that are stored."""
        images, path = self.features.dataset.splits[split], self.features.run.rank_file(epoch, split)
        store.write_ranks(path, store.Rows(images.labels, images.ids), entries, chance=self._chance(split))

    @contextlib.contextmanager
    def opened(
        self, epoch: int, split: str, ranked: RankedLayer, memory: int | None
    ) -> Iterator[tuple[Features, Features | None]]:
        """What is searched for and what it is searched in, reduced; None for itself.

        Args:
            epoch: 0 = before any step.
            split: the queries'.
            ranked: the layer and its reduction.
            memory: features larger than that stay on disk, unless they are reduced; None: none do.
        """
        if ranked.reduction != NO_REDUCTION:
            memory = None  # only a tensor can be reduced
        reduce = load("reduction", REDUCTIONS, ranked.reduction)().fit(self._training(epoch, ranked), seed=self.seed)
        with contextlib.ExitStack() as stack:
            opened = [
                stack.enter_context(self.features.opened(epoch, name, ranked.layer, self.device, memory))
                for name in dict.fromkeys((split, self.gallery(split)))
            ]
            queries, *others = (replace(part, values=reduce(part.values)) for part in opened)
            yield queries, others[0] if others else None

    def _chance(self, split: str) -> float | None:
        """Recall@1 of a random order; None where it follows from the classes alone."""
        rules, queries = self.rules(split), self.features.dataset.splits[split]
        if rules is None:
            return None
        if self.gallery(split) == split:
            return chance_recall(queries.labels, 1, rules=rules)
        gallery = self.features.dataset.splits[self.gallery(split)]
        return chance_recall(queries.labels, 1, gallery.labels, ids=queries.ids, gallery_ids=gallery.ids, rules=rules)

    def _fitted_on(self, epoch: int, reduction: str) -> str:
        """What a reduction is fitted on, and with which seed; empty where nothing is fitted."""
        if reduction == NO_REDUCTION or FITTED_ON not in self.features.dataset.splits:
            return ""
        return f"{self.features.key(epoch, FITTED_ON)} seed {self.seed}"

    def _training(self, epoch: int, ranked: RankedLayer) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The layer's features of the training split, once something asks for them."""
        with self.features.opened(epoch, FITTED_ON, ranked.layer, self.device, None) as features:
            labels = torch.from_numpy(features.labels).to(self.device)
            yield torch.as_tensor(features.values), labels

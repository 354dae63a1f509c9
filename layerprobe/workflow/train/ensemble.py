"""Probing an ensemble (DREML): the members are ordinary runs, and a further run concatenates their embeddings."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.hooks import Hook
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.launch import Launch
from layerprobe.system.progress import Listener
from layerprobe.values.costs import Estimate
from layerprobe.values.scores import Score
from layerprobe.workflow.probe import probe as single
from layerprobe.workflow.probe.classifiers import drop_accuracy
from layerprobe.workflow.probe.probe import Probing, read_score_table
from layerprobe.workflow.probe.probed_run import ProbedRun, RunExtractor, open_for_probing
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.scoring import Scorer, Searches
from layerprobe.workflow.probe.selection import select
from layerprobe.workflow.run.experiments import require_same_images
from layerprobe.workflow.run.features import Missing, RunFeatures, features_of
from layerprobe.workflow.run.run_network import embedding_hook, network_facts
from layerprobe.workflow.run.runs import Run, find_run, locked, named_run

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.workflow.probe.probed_run import Tell

_ROWS = 512
_NO_CLASSIFIER = "an ensemble has no classifier"


@dataclass(frozen=True, eq=False)
class Member:
    """A run of an ensemble that is opened for probing: its embedding, stored features and extractor."""

    embedding: Hook
    features: RunFeatures
    extractor: RunExtractor

    def missing(self, epoch: int, split: str) -> Missing:
        """Its embedding, if that is not stored."""
        return self.features.missing(epoch, split, [self.embedding])

    def unit_embeddings(self, epoch: int, split: str) -> Tensor:
        """(N, D) its stored embeddings, each of length 1; zero vectors stay."""
        import torch
        import torch.nn.functional as F

        # The file's key has the hash of ids and classes: its rows are the images of this split.
        return F.normalize(torch.from_numpy(self.features.read_values(epoch, split, self.embedding.key)))


@dataclass(frozen=True, eq=False)
class EnsembleExtractor:
    """Stores the members' embeddings, each L2-normalised, side by side.

    Args:
        members: in the order of their embeddings.
    """

    features: RunFeatures
    members: Sequence[Member]
    opened: ProbedRun

    def images(self, missing: Missing) -> int:
        """Those of the split for every member whose embedding is not stored."""
        if not missing.hooks:
            return 0
        missing_embeddings = [member.missing(missing.epoch, missing.split) for member in self.members]
        return sum(member.extractor.images(item) for member, item in zip(self.members, missing_embeddings, strict=True))

    def decode(self) -> None:
        """Decode the images, which the members share."""
        for member in self.members:
            member.extractor.decode()

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Extract what members lack, then put the embeddings of all side by side."""
        import torch

        (hook,) = missing.hooks
        with ExitStack() as stack:
            for member in self.members:
                stack.enter_context(locked(member.features.run))
                item = member.missing(missing.epoch, missing.split)
                if item.hooks:
                    member.extractor.extract(item, tell)
            rows = torch.cat([member.unit_embeddings(missing.epoch, missing.split) for member in self.members], dim=1)
        columns = store.Columns(dims={hook.key: hook.dim}, device=str(self.opened.device), batch_size=_ROWS)
        missing.plan.remove_stale()
        for part in missing.plan.parts:
            batches = ({hook.key: x.numpy()} for x in rows[part.rows.start : part.rows.stop].split(_ROWS))
            self.features.write(missing, part, columns, batches)


def prepare_ensemble(
    run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
) -> Probing:
    """As `probe.prepare`, of an ensemble: its one layer is the members' embeddings side by side."""
    opened = open_for_probing(run, request, dataset, listener)
    recipe, embedding = opened.recipe, embedding_hook(opened.recipe, opened.measured)
    if any(name not in ("*", embedding.layer) for name in request.layers or ()):
        raise RecipeError(
            f"an ensemble has its members' embeddings alone: {embedding.layer}",
            fix=f"Probe a member for other layers: {Run(run.folder.with_name(f'{run.name}.1')).command('probe')}",
        )
    if request.store_post is not None:
        raise RecipeError("--store-post is for a single run", fix="Leave it out, or probe a member")
    opened.keep_forwards()
    request = drop_accuracy(request, recipe, lambda: _NO_CLASSIFIER, listener)
    dataset = opened.dataset
    stored: Any = {"dtype": request.store, "precision": request.precision, "shard_rows": request.shard_rows}
    members: list[Member] = []
    for name in opened.record.members:
        if not named_run(run.folder.parent, name).exists():
            raise DataError("no such run", file=run.folder.with_name(name), fix="Train the ensemble again")
        member = open_for_probing(find_run(run.folder.parent, name), request)
        features = features_of(member.run, member.recipe, dataset, **stored)
        share = partial(_extract_together, run, request, len(members))
        members.append(Member(embedding, features, RunExtractor(features, member, opened, share)))
    side_by_side = replace(embedding, dim=embedding.dim * len(members))
    selection = select(request, recipe, [side_by_side], embedding, dataset, unclassified=lambda: _NO_CLASSIFIER)

    @cache
    def weights_sha256(epoch: int) -> str:
        digests = [member.features.weights_sha256(epoch) for member in members]
        return hashlib.sha256(" ".join(digests).encode()).hexdigest()

    def require_weights(epoch: int) -> None:
        for member in members:
            member.features.require_weights(epoch)

    @cache
    def dtype(epoch: int, split: str) -> str:
        return max(member.features.dtype(epoch, split) for member in members)

    @cache
    def precision(epoch: int, split: str) -> str:
        return max(member.features.precision(epoch, split) for member in members)

    features = features_of(run, recipe, dataset, **stored)
    features = replace(features, dtype=dtype, precision=precision)
    features = replace(features, weights_sha256=weights_sha256, require_weights=require_weights)
    # Each member has drawn a share of the training images of its own.
    compared = [name for name in selection.extracted_splits if name != "train" or recipe.data.share == 1]
    require_same_images(opened.record, dataset, compared, fix=single.OTHER_IMAGES)
    extractor = EnsembleExtractor(features, members, opened)
    searches = Searches(features, opened.record.experiment, opened.record.seed, lambda: opened.device)
    scorer = Scorer(searches, selection.measures, partial(single.rank_together, prepare_ensemble, run, request))
    network = opened.record.network or replace(
        network_facts(recipe, opened.net, opened.measured), cuts={}, multiply_adds=None
    )
    table = read_score_table(opened, features, selection)
    return Probing(selection, features, extractor, scorer, table, network, request.launch)


def _extract_together(run: Run, request: ProbeRequest, member: int, missing: Missing) -> None:
    request.launch.call(_extract, run, request, member, missing)


def _extract(launch: Launch, run: Run, request: ProbeRequest, member: int, missing: Missing) -> None:
    extractor = single.prepared(prepare_ensemble, run, replace(request, launch=launch)).extractor
    if isinstance(extractor, EnsembleExtractor):
        extractor.members[member].extractor.extract(missing, launch.counted)


def probe_any(run: Run, request: ProbeRequest, listener: Listener) -> list[Score]:
    """Measure a run or an ensemble; see `probe.probe`."""
    return single.probe(run, request, listener, prepare_ensemble if run.read().members else single.prepare)


def estimate_probe_of(run: Run, request: ProbeRequest) -> Estimate:
    """As `estimate_probe`."""
    from layerprobe.workflow.probe.estimate_probe import estimate_probe

    if run.read().members:
        raise RecipeError("--dry-run is for a single run", fix=f"Estimate a member: {run.name}.1")
    return estimate_probe(run, request)

"""References such as `netA#20:pool5.3@max/l2+pca:64+l2`, and the layers and ranks that they name."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import IN_GALLERY
from layerprobe.post_processing.chain import parse_chain
from layerprobe.store import StoredRanks
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError, near_miss
from layerprobe.values.epochs import epochs_text
from layerprobe.values.layers import (
    NO_POOL,
    NO_POST_PROCESSING,
    LayerKey,
    RankedLayer,
    find_layer,
    is_glob,
    is_named,
    matching_layers,
    network_order,
)
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import SIMILARITIES
from layerprobe.values.scores import SPLITS, Subject
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.runs import Run, find_run, list_runs, named_run

# The pools that represent a layer with several, in order of preference; then the first in network order.
_POOLS = (NO_POOL, "max")
_FORM = "[RUN[#epoch]:]LAYER[@pool][/post-processing][~similarity] or RUN[#epoch], such as netA#20:pool5.3"
_HEAD = re.compile(r"(?P<run>[^/:@#]*)(#(?P<epoch>[^/:@#]*))?:")


@dataclass(frozen=True)
class LastTwo:
    """The embedding and the layer measured before it, chosen without looking at scores; `adjacent` in the network."""

    before: RankedLayer
    embedding: RankedLayer
    adjacent: bool


def embedding_among(record: RunRecord, measured: Iterable[RankedLayer]) -> RankedLayer | None:
    """The raw embedding; None if it was not measured, or is unknown for a model from Python."""
    if record.network is None:
        return None
    name, pool = record.network.embedding.layer, record.network.embedding.pool
    layers = [ranked for ranked in _raw(record, measured) if ranked.layer.layer == name]
    return _first_pool(layers, (NO_POOL, pool, *_POOLS)) if layers else None


def last_two(record: RunRecord, measured: Iterable[RankedLayer]) -> LastTwo | None:
    """The raw embedding and the layer before it; None if one of them was not measured."""
    measured = list(measured)
    embedding = embedding_among(record, measured)
    if embedding is None or record.network is None:
        return None
    raw = _raw(record, measured)  # a classifier may be measured after the embedding
    earlier = [x for x in raw[: raw.index(embedding)] if x.layer.layer != embedding.layer.layer]
    if not earlier:
        return None
    last_layer = earlier[-1].layer.layer
    before = _first_pool([ranked for ranked in earlier if ranked.layer.layer == last_layer], _POOLS)
    return LastTwo(before, embedding, adjacent=last_layer == record.network.before)


def _raw(record: RunRecord, measured: Iterable[RankedLayer]) -> list[RankedLayer]:
    """Single layers without post-processing, by the run's similarity, in network order."""
    return [
        ranked
        for ranked in network_order(measured, record.layer_order)
        if (ranked.post_processing, ranked.similarity) == (NO_POST_PROCESSING, record.similarity)
        and "+" not in ranked.layer.layer
    ]


def _first_pool(layers: Sequence[RankedLayer], pools: Sequence[str]) -> RankedLayer:
    order = [*pools, *(ranked.layer.pool for ranked in layers)]
    return min(layers, key=lambda ranked: order.index(ranked.layer.pool))


def draws_of(ranked: RankedLayer) -> tuple[RankedLayer, ...]:
    """The ranked layers of post-processing of several draws; for any other, the layer itself."""
    return tuple(replace(ranked, post_processing=text) for text in parse_chain(ranked.post_processing).members())


def ranked_as(ranked: RankedLayer, layers: Collection[RankedLayer]) -> tuple[RankedLayer, ...]:
    """The known layers whose mean a layer is: itself, or all its draws; empty if one is missing."""
    if ranked in layers:
        return (ranked,)
    draws = draws_of(ranked)
    return draws if all(draw in layers for draw in draws) else ()


def mean_of_queries(
    layers: Sequence[RankedLayer], value_of: Callable[[RankedLayer], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """(Q,) each query's value of a metric, averaged over the layers that `ranked_as` returned."""
    mean: NDArray[np.float64] = np.mean([value_of(layer) for layer in layers], axis=0)
    return mean


@dataclass(frozen=True)
class Reference:
    """A parsed reference.

    Args:
        run: None: the last used one.
        epoch: 0 = before any step; None: the last.
        layer: with its pool if given, or a glob; None: the embedding.
        similarity: None: the run's.
    """

    run: str | None = None
    epoch: int | None = None
    layer: str | None = None
    post_processing: str = NO_POST_PROCESSING
    similarity: str | None = None

    @property
    def is_glob(self) -> bool:
        """Whether it may name several layers."""
        return self.layer is not None and is_glob(self.layer)


def parse_reference(text: str, *, bare: Literal["run", "layer"] = "run") -> Reference:
    """Parse a reference; `bare` is what a text without a colon names."""
    head = _HEAD.match(text) or (_HEAD.fullmatch(f"{text}:") if bare == "run" else None)
    run, number = (head["run"] or None, head["epoch"]) if head else (None, None)
    if head and not run and number is None:
        raise RecipeError(f"{text!r} names no run", fix=f"Write {_FORM}")
    if number is not None and not (number.isascii() and number.isdecimal()):
        raise RecipeError(f"{text}: {number!r} is not an epoch", fix=f"Write {_FORM}")
    layer_text, tilde, similarity = text[head.end() if head else 0 :].partition("~")
    layer, slash, post_processing = layer_text.partition("/")
    if (head and ":" in text and not layer) or (slash and not post_processing):
        missing = "post-processing after /" if layer else "layer after the colon"
        raise RecipeError(f"{text}: no {missing}", fix=f"Write {_FORM}")
    if tilde and similarity not in SIMILARITIES:
        raise UnknownNameError("similarity", similarity, SIMILARITIES)
    epoch = None if number is None else int(number)
    return Reference(run, epoch, layer or None, post_processing or NO_POST_PROCESSING, similarity or None)


def find_reference(cache: Path, text: str) -> tuple[Run, Reference]:
    """The run that a text names, by default the last used one, and the reference.

    An experiment stands for its training with the lowest seed. A text without a colon names a run if it exists, else a
    layer of the last used run.
    """
    if _HEAD.match(text) or (head := _HEAD.fullmatch(f"{text}:")) is None:
        reference = parse_reference(text, bare="layer")
        return _find(cache, reference.run), reference
    reference = parse_reference(text)
    try:
        return _find(cache, head["run"]), reference
    except UnknownNameError:
        if head["epoch"] is not None:
            raise
        run = find_run(cache, None)
        layers = run.read().layer_order
        if set(text.partition("~")[0].split("+")) <= set(layers):
            return run, parse_reference(text, bare="layer")
        names = [*(other_run.name for other_run, _ in list_runs(cache)), *layers]
        raise UnknownNameError(f"run, or layer of {run.name},", text, names, file=cache) from None


def _find(cache: Path, name: str | None) -> Run:
    """The run of a name, or the training with the lowest seed of an experiment."""
    if name is not None and not named_run(cache, name).exists():
        trainings = [(record.seed, run.name, run) for run, record in list_runs(cache) if record.experiment == name]
        if trainings:
            return min(trainings)[2]
    return find_run(cache, name)


def reference_text(subject: Subject) -> str:
    """The full reference, such as `netA#20:pool5.3@max~cosine`."""
    ranked = subject.ranked
    return f"{subject.run}#{subject.epoch}:{ranked.full_name}"


@dataclass(frozen=True, eq=False)
class RankedSplit:
    """The ranks of a run's epoch and split."""

    run: Run
    record: RunRecord
    epoch: int
    split: str
    stored: StoredRanks

    @property
    def similarity(self) -> str:
        """The run's default."""
        return self.record.similarity

    @property
    def layers(self) -> list[RankedLayer]:
        """All stored layers, in network order, with those whose features were not finite."""
        return network_order([*self.stored.ranks, *self.stored.invalid], self.record.layer_order)

    def ranked_as(self, ranked: RankedLayer) -> tuple[RankedLayer, ...]:
        """The stored layers whose mean a layer is: itself, or all its draws; empty if one is missing."""
        return ranked_as(ranked, self.stored.values)

    def has_ranks(self, ranked: RankedLayer) -> bool:
        """Whether a layer, or all its draws, are ranked on features that were finite."""
        draws = self.ranked_as(ranked)
        return bool(draws) and all(draw in self.stored.ranks for draw in draws)

    def subject(self, ranked: RankedLayer) -> Subject:
        """The subject of a layer's values."""
        return Subject(self.run.name, self.record.experiment, self.record.seed, self.epoch, self.split, ranked)

    def name(self, ranked: RankedLayer) -> str:
        """The layer, with its similarity unless that is the run's."""
        return ranked.name(self.similarity)


def open_ranked_split(run: Run, epoch: int | None, split: str) -> RankedSplit:
    """Read the stored ranks of a run's epoch, by default the last, and split."""
    record = run.read()
    done: int = record.epochs_done
    splits = [name for name in SPLITS if name in record.manifests] or list(SPLITS)
    if split not in splits:
        raise UnknownNameError(f"split of {run.name}:", split, splits)
    if epoch is not None and epoch not in record.epochs:
        raise RecipeError(f"{run.name} has no epoch {epoch}", fix=f"Choose one from {epochs_text(record.epochs)}")
    epoch = done if epoch is None else epoch
    if not run.has_ranks(epoch, split):
        raise DataError(
            f"epoch {epoch} is not ranked on the {split} split",
            file=run.folder,
            fix=probe_fix(run, record, epoch, split),
        )
    return RankedSplit(run, record, epoch, split, run.ranks(epoch, split).stored)


def require_finite(ranked_split: RankedSplit, ranked: RankedLayer) -> None:
    """Check that the features of a layer were finite, so that it has neighbours."""
    if reason := ranked_split.stored.invalid.get(ranked):
        message = f"{ranked_split.name(ranked)} at epoch {ranked_split.epoch} has no neighbours: {reason}"
        raise NumericError(message, fix="Omit it")


def require_any_right_item(ranked_split: RankedSplit) -> RankedSplit:
    """The split itself, unless no query had a right item to find, so that all its numbers are 0."""
    ranks = ranked_split.stored.ranks.values()
    if ranks and all(layer_ranks.lone == len(layer_ranks) for layer_ranks in ranks):
        message = f"no query of {ranked_split.split} had a right item to find at epoch {ranked_split.epoch}"
        fix = "Correct the labels, data.group or the split, and probe again"
        raise DataError(message, file=ranked_split.run.folder, fix=fix)
    return ranked_split


def probe_fix(run: Run, record: RunRecord, epoch: int, split: str, *more: str) -> str:
    """The fix for missing ranks: `Run layerprobe probe netA --epochs 20 --splits test --layers c3`."""
    if record.from_python:
        return "Measure it in Python, by layerprobe.probe(model, splits, cache=...)"
    return f"Run {run.command('probe', '--epochs', str(epoch), '--splits', split, *more)}"


def find_layers(ranks: RankedSplit, reference: Reference) -> list[RankedLayer]:
    """The ranked layers of a reference, in network order: one, or several for a glob."""
    chain = parse_chain(reference.post_processing)
    similarity = reference.similarity or chain.similarity or ranks.similarity
    drawn = dict.fromkeys(
        replace(x, post_processing=chain.text) for x in ranks.layers if x.post_processing in chain.members()
    )
    candidates = [ranked for ranked in drawn if ranked.similarity == similarity and ranks.ranked_as(ranked)]
    text = reference.layer or _embedding(ranks)
    layers = matching_layers(f"{text}/*", candidates)
    if not layers:
        raise _not_ranked(ranks, reference, text, similarity)
    if len(layers) > 1 and not reference.is_glob:
        find_layer(text, [ranked.layer for ranked in layers])  # refuses a layer with several pools
    return layers


def _embedding(ranks: RankedSplit) -> str:
    """The embedding layer with its pool."""
    if ranks.record.network is None:
        raise RecipeError(
            f"{ranks.run.name} was measured from Python, and its embedding layer is not known",
            fix=f"Name a layer, such as {ranks.run.name}:{ranks.layers[0].layer}",
        )
    embedding = embedding_among(ranks.record, ranks.layers)
    return ranks.record.network.embedding.layer if embedding is None else str(embedding.layer)


class NotRankedError(RecipeError):
    """A reference to a layer that is not ranked.

    Args:
        layer: as it is to be measured; None: no single one is named.
        near: what was meant, or what is ranked of it.
        is_another: whether `near` is a guess.
    """

    def __init__(
        self, message: str, ranks: RankedSplit, layer: RankedLayer | None, near: str, is_another: bool
    ) -> None:
        self.ranks, self.layer, self.near, self.is_another = ranks, layer, near, is_another
        super().__init__(message, fix=_measuring([self]))


def _not_ranked(ranks: RankedSplit, reference: Reference, text: str, similarity: str) -> NotRankedError:
    where = f"{ranks.run.name}, epoch {ranks.epoch}, {ranks.split}"
    layer_names = dict.fromkeys(str(x.layer) for x in ranks.layers)
    name, _, pool = text.partition("@")
    requested = RankedLayer(LayerKey(name, pool or NO_POOL), reference.post_processing, similarity)
    other = [x for x in ranks.layers if is_named(x.layer, text)]
    if other:
        near = f"Ranked: {', '.join(dict.fromkeys(x.full_name for x in other))}"
        post_processing = "" if reference.post_processing == NO_POST_PROCESSING else f"/{reference.post_processing}"
        message = f"{where}: {text}{post_processing}~{similarity} is not ranked"
        return NotRankedError(message, ranks, requested, near, False)
    if reference.is_glob:
        near = f"Ranked: {', '.join(dict.fromkeys(str(x.layer) for x in ranks.layers))}"
        return NotRankedError(f"{where}: no ranked layer matches {text}", ranks, None, near, False)
    return NotRankedError(
        f"{where}: layer {text!r} is not ranked", ranks, requested, near_miss(text, layer_names), True
    )


def _measuring(missing: Sequence[NotRankedError]) -> str:
    """What was meant, and the commands that measure what is missing."""
    fix = probe_layers_fix([(error.ranks, error.layer) for error in missing if error.layer is not None])
    another = ", if it is another layer" if any(error.is_another for error in missing) and fix else ""
    near = dict.fromkeys(error.near.rstrip(".") for error in missing)
    return ". ".join(filter(None, [*near, fix])) + another


def probe_layers_fix(layers: Iterable[tuple[RankedSplit, RankedLayer]], *more: str, epoch: int | None = None) -> str:
    """As `probe_fix`, of several layers: a command for each run, epoch and similarity; empty without layers.

    Args:
        epoch: None: that of the split.
    """
    parts: dict[tuple[Path, int, str], list[tuple[RankedSplit, RankedLayer]]] = {}
    for ranks, layer in layers:
        at = ranks.epoch if epoch is None else epoch
        parts.setdefault((ranks.run.folder, at, layer.similarity), []).append((ranks, layer))
    fixes = []
    for (_, at, _), ranked_layers in parts.items():
        first_split = ranked_layers[0][0]
        splits = ",".join(dict.fromkeys(ranks.split for ranks, _ in ranked_layers))
        flags = layer_flags(first_split.record, [layer for _, layer in ranked_layers])
        fixes.append(probe_fix(first_split.run, first_split.record, at, splits, *flags, *more))
    return "; then ".join([*fixes[:1], *(f"{fix[0].lower()}{fix[1:]}" for fix in dict.fromkeys(fixes[1:]))])


def find_layers_of(references: Sequence[tuple[RankedSplit, Reference]]) -> list[list[RankedLayer]]:
    """As `find_layers`, of several references: the error names all that is not ranked."""
    layers, missing = [], []
    for ranks, reference in references:
        try:
            layers.append(find_layers(ranks, reference))
        except NotRankedError as error:
            missing.append(error)
    if len(missing) > 1:
        raise RecipeError("; ".join(dict.fromkeys(error.message for error in missing)), fix=_measuring(missing))
    if missing:
        raise missing[0]
    return layers


def layer_flags(record: RunRecord, layers: Iterable[RankedLayer]) -> list[str]:
    """The flags of `layerprobe probe` that measure some layers: `--layers c3@max --post l2`."""
    layers = list(layers)
    names, post_processings = (
        dict.fromkeys(str(x.layer) for x in layers),
        dict.fromkeys(x.post_processing for x in layers),
    )
    similarities = {x.similarity for x in layers} - {record.similarity, "hamming"}
    flags = ["--layers", ",".join(names)]
    if list(post_processings) != list(record.recipe.get("probe", {}).get("post", [NO_POST_PROCESSING])):
        flags += ["--post", ",".join(post_processings)]
    return [*flags, *(["--similarity", *similarities] if similarities else [])]


def require_same_queries(a: RankedSplit, b: RankedSplit) -> None:
    """Check that two splits have the same images, classes, galleries and search rules."""
    stored_a, stored_b = a.stored, b.stored
    fix = "Compare runs of the same data set, with the same classes and images in the split"
    names = f"{a.run.name} and {b.run.name}"
    if stored_a.ids != stored_b.ids:
        shared = len(set(stored_a.ids) & set(stored_b.ids))
        counts = f"{len(stored_a.ids):,} and {len(stored_b.ids):,} images of the {a.split} split, {shared:,} in both"
        is_same = set(stored_a.ids) == set(stored_b.ids)
        text = f"the images of the {a.split} split in another order" if is_same else counts
        raise RecipeError(f"{names} have {text}", fix=fix)
    for split in filter(None, (a.split, IN_GALLERY.get(a.split))):
        if have_other_images(a.record, b.record, split):
            raise RecipeError(f"{names} have {split} images with the same names and other contents", fix=fix)
    if unlike := int((stored_a.labels != stored_b.labels).sum()):
        raise RecipeError(f"{names} have {unlike:,} images of the {a.split} split with other labels", fix=fix)
    if stored_a.search_sha256 != stored_b.search_sha256:
        raise RecipeError(
            f"{names} search their {a.split} images in another gallery, or with other groups or lists", fix=fix
        )

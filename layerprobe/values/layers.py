"""LayerKey and RankedLayer, pools, and how layers are named, compared and selected.

A name is `[RUN#epoch:]LAYER[@pool][/post_processing][~similarity]`: printed with the pool except for a vector (`fc6`),
and with run, epoch and similarity where rows differ in them. Input may omit unambiguous parts.

Expressions, such as `blocks.5.0@avg/l2+whiten:128:0.5+l2`, stand only where they are typed.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from layerprobe.system.errors import RecipeError, UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

Pool = Literal["max", "avg", "gem"]  # hooks have grid:s, too, for any s
POOLS: tuple[Pool, ...] = get_args(Pool)
TOKEN_POOLS = ("cls", "cls+avg")  # of tokens with a class token: it, and it followed by the mean of the patches
NO_POOL = "none"  # of a vector

_GEM_POWER = 3
_GEM_FLOOR = 1e-6


def require_pool(pool: str) -> None:
    """Check that a pool is known."""
    if pool not in (*POOLS, *TOKEN_POOLS, NO_POOL) and not re.fullmatch("grid:[1-9][0-9]*", pool):
        raise UnknownNameError("pool", pool, (*POOLS, *TOKEN_POOLS, "grid:s"))


def gem(maps: Tensor) -> Tensor:
    """Generalised mean: (B, C, H, W) -> (B, C) the cube root of the mean cube, values below 1e-6 raised to it."""
    return maps.clamp(min=_GEM_FLOOR).pow(_GEM_POWER).mean((2, 3)).pow(1 / _GEM_POWER)


SHARD_ROWS = 1_000_000  # images of a split above which its features lie in several files
NO_POST_PROCESSING = "none"
_PREFIX = re.compile(r"\A[^/:@]*:")  # RUN#epoch: before a name; a colon inside post-processing follows its slash
OUTPUT = "output"  # the model's own output as a layer, unless a layer or module has this name

# Similarities of vectors; packed bits are compared by hamming only.
VectorSimilarity = Literal["cosine", "euclidean", "dot"]
VECTOR_SIMILARITIES: tuple[VectorSimilarity, ...] = get_args(VectorSimilarity)


@dataclass(frozen=True, order=True)
class LayerKey:
    """A layer's output, pooled: one table of features. As text `pool5.3@max`, `fc6`; in files `fc6@none`.

    Args:
        layer: the layer's name, with `#i` where its module is called several times; `A+B` for concatenated layers, in
            execution order.
        pool: max, avg, gem or grid:s; none for a layer whose output is a vector.
    """

    layer: str
    pool: str

    def __str__(self) -> str:
        return self.layer if self.pool == NO_POOL else self.stored

    @property
    def stored(self) -> str:
        """The name in files: `pool5.3@max`, `fc6@none`."""
        return f"{self.layer}@{self.pool}"

    @classmethod
    def parse(cls, text: str) -> LayerKey:
        """The inverse of `stored`."""
        layer, at, pool = text.rpartition("@")
        if not (layer and at and pool):
            raise ValueError(f"{text!r} is not a layer and its pool, like 'pool5.3@max'")
        return cls(layer, pool)


def find_layer(text: str, layers: Collection[LayerKey]) -> LayerKey:
    """The known layer that `pool5.3@avg` names, or `pool5.3` if it has a single pool there; `A+B` in any order."""
    matches = [key for key in layers if is_named(key, text)]
    if not matches:
        raise UnknownNameError("layer", text, map(str, layers))
    if len(matches) > 1:
        raise RecipeError(f"{text} has several pools", fix=f"Choose one of {', '.join(map(str, matches))}")
    return matches[0]


def is_named(key: LayerKey, text: str) -> bool:
    """Whether `pool5.3@avg`, or `pool5.3` for any pool, names a layer; `A+B` in any order."""
    layer, at, pool = text.partition("@")
    return sorted(layer.split("+")) == sorted(key.layer.split("+")) and pool in ((key.pool,) if at else ("",))


def members_of(layer: LayerKey, stored: Collection[LayerKey]) -> tuple[LayerKey, ...]:
    """The stored layers that a layer concatenates, or the layer itself if it is stored; empty if some are missing."""
    if layer in stored:
        return (layer,)
    names = layer.layer.split("+")
    pooled = [dict.fromkeys([LayerKey(name, layer.pool), LayerKey(name, NO_POOL)]) for name in names]
    members = tuple(key for keys in pooled for key in keys if key in stored)  # a layer is a map or a vector, never both
    return members if len(members) == len(names) > 1 else ()


def concatenated_layers(text: str, stored: Collection[LayerKey], layer_order: Sequence[str]) -> list[LayerKey]:
    """The layers that `A+B` may name, one for each pool with which its members are stored."""
    order = {name: position for position, name in enumerate(layer_order)}
    names = sorted(text.partition("@")[0].split("+"), key=lambda name: order.get(name, len(order)))
    pools = dict.fromkeys(key.pool for key in stored if key.layer in names and key.pool != NO_POOL)
    concatenations = [LayerKey("+".join(names), pool) for pool in pools or [NO_POOL]]
    is_concatenation = len(names) == len(set(names)) > 1
    return [key for key in concatenations if key not in stored and members_of(key, stored)] if is_concatenation else []


@dataclass(frozen=True, order=True)
class RankedLayer:
    """A layer with the post-processing and similarity of its ranking: `pool5.3@max/l2+pca:64+l2`.

    Args:
        post_processing: none, or the chain of post-processing steps.
        similarity: cosine, dot, euclidean or hamming.
    """

    layer: LayerKey
    post_processing: str
    similarity: str

    def __str__(self) -> str:
        return str(self.layer) + ("" if self.post_processing == NO_POST_PROCESSING else f"/{self.post_processing}")

    def as_columns(self) -> dict[str, str]:
        """Column -> cell, in tables and JSON."""
        layer, pool = self.layer.layer, self.layer.pool
        return {"layer": layer, "pool": pool, "post_processing": self.post_processing, "similarity": self.similarity}

    @property
    def full_name(self) -> str:
        """With the similarity: `pool5.3@max/l2+pca:64+l2~cosine`."""
        return f"{self}~{self.similarity}"

    def name(self, similarity: str) -> str:
        """With the similarity unless that is the run's; hamming, the only one of bits, is omitted."""
        return str(self) if self.similarity in (similarity, "hamming") else self.full_name


def layer_names(rows: Iterable[RankedLayer]) -> list[str]:
    """The name of each row, with its similarity where rows differ in it; hamming, the only one of bits, is omitted."""
    rows = list(rows)
    has_several_similarities = len({row.similarity for row in rows} - {"hamming"}) > 1
    return [row.full_name if has_several_similarities and row.similarity != "hamming" else str(row) for row in rows]


def names_by_layer(rows: Iterable[RankedLayer]) -> dict[RankedLayer, str]:
    """Each layer once, with its name among them."""
    distinct = list(dict.fromkeys(rows))
    return dict(zip(distinct, layer_names(distinct), strict=True))


def matching_layers(text: str, layers: Iterable[RankedLayer]) -> list[RankedLayer]:
    """The layers that `LAYER[@pool][/post-processing][~similarity]` names, in the order of `layers`.

    Each part may be a glob.

    Without `/post-processing` a name means the raw layer, and all its post-processing if that is not known; without a
    pool or a similarity, all of them. `A+B` may name its layers in any order. A prefix `RUN#epoch:` is ignored.
    """
    layer_text, _, similarity = _PREFIX.sub("", text).partition("~")
    layers = [ranked for ranked in dict.fromkeys(layers) if fnmatch.fnmatchcase(ranked.similarity, similarity or "*")]
    # A layer that is not stored may have a slash in its own name.
    matches = [ranked for ranked in layers if _is_layer(ranked.layer, layer_text)]
    if matches:
        return [ranked for ranked in matches if ranked.post_processing == NO_POST_PROCESSING] or matches
    layer, _, post_processing = layer_text.partition("/")
    return [
        ranked
        for ranked in layers
        if _is_layer(ranked.layer, layer)
        and post_processing
        and fnmatch.fnmatchcase(ranked.post_processing, post_processing)
    ]


def is_glob(text: str) -> bool:
    """Whether a name may mean several layers."""
    return any(sign in text for sign in "*?[")


def _is_layer(key: LayerKey, text: str) -> bool:
    if is_glob(text):
        return any(fnmatch.fnmatchcase(name, text) for name in (key.stored, key.layer))
    return is_named(key, text)


def network_order(rankings: Iterable[RankedLayer], layer_order: Sequence[str]) -> list[RankedLayer]:
    """The distinct rankings in execution order of their layers, then by pool, post-processing and similarity.

    The pools max, avg, gem, cls and cls+avg come first, in this order, and `none` before any post-processing; further
    pools, post-processing and similarities are sorted by name, `pca:8` before `pca:64`. `A+B` follows the last of its
    layers.
    """
    distinct = list(dict.fromkeys(rankings))
    recorded = set(layer_order)
    names = dict.fromkeys([*layer_order, *(ranked.layer.layer for ranked in distinct)])
    order = {name: position for position, name in enumerate(names)}

    def sort_key(ranked: RankedLayer) -> tuple[object, ...]:
        layer, pool = ranked.layer.layer, ranked.layer.pool
        members = [name for name in layer.split("+") if name in recorded] or [layer]
        return (
            sorted((order[name] for name in members), reverse=True),
            [*POOLS, *TOKEN_POOLS, pool].index(pool),
            _natural(pool),
            ranked.post_processing != NO_POST_PROCESSING,
            _natural(ranked.post_processing),
            ranked.similarity,
        )

    return sorted(distinct, key=sort_key)


def _natural(text: str) -> list[str | int]:
    return [int(piece) if i % 2 else piece for i, piece in enumerate(re.split("([0-9]+)", text))]


_ON_GALLERY = "@gallery"
_POWERS = {"0": "PCA", "0.5": "partially whitened", "1": "whitened"}
_WORDS = {
    "l2": "",
    "pca": "PCA",
    "lwhiten": "learned whitening",
    "lda": "LDA",
    "random": "random projection",
    "binary": "binary codes",
}


def spoken_name(ranked: RankedLayer, *, pool: bool = False) -> str:
    """`blocks.5.0, partially whitened to 128`; `blocks.5.0` without post-processing.

    Args:
        pool: whether the pool is named: `blocks.5.0 (avg)`, but for vectors.
    """
    layer = ranked.layer
    name = f"{layer.layer} ({layer.pool})" if pool and layer.pool != NO_POOL else layer.layer
    if ranked.post_processing == NO_POST_PROCESSING:
        return name
    return f"{name}, {spoken_post_processing(ranked.post_processing, dimensions=True)}"


def spoken_post_processing(chain: str, *, dimensions: bool = False) -> str:
    """`partially whitened`, or `partially whitened to 128`; the chain itself where nothing else says what it does."""
    words = [word for step in chain.removesuffix(_ON_GALLERY).split("+") if (word := _word(step, dimensions))]
    return ", ".join(words + ["fitted on the gallery"] * chain.endswith(_ON_GALLERY)) or chain


def _word(step: str, dimensions: bool) -> str:
    name, _, argument = step.partition(":")
    power = argument.rpartition(":")[2]
    word = _POWERS.get(power, f"whitened by {power}") if name == "whiten" else _WORDS.get(name, step)
    size = re.match(r"[0-9]+", argument)
    return f"{word} to {size[0]}" if word and dimensions and size and word != step else word


def unlike_text(a: RankedLayer, b: RankedLayer, dims: tuple[int | None, int | None]) -> str:
    """`they differ in pool (max, avg) and dimensions (256, 512)`; empty where they are alike.

    A vector has no pool, so that it differs from a map in none.

    Args:
        dims: of the two; None if unknown.
    """
    pools, differences = (a.layer.pool, b.layer.pool), []
    if NO_POOL not in pools and pools[0] != pools[1]:
        differences.append(f"pool ({pools[0]}, {pools[1]})")
    if None not in dims and dims[0] != dims[1]:
        differences.append(f"dimensions ({dims[0]:,}, {dims[1]:,})")
    if a.post_processing != b.post_processing:
        differences.append(f"post-processing ({a.post_processing}, {b.post_processing})")
    if not differences:
        return ""
    before = f"{', '.join(differences[:-1])} and " if len(differences) > 1 else ""
    return f"they differ in {before}{differences[-1]}"


def headline_layers(
    layers: Sequence[RankedLayer], validation: Mapping[RankedLayer, float], embedding: RankedLayer | None
) -> list[RankedLayer]:
    """The first layer, the middle one, the one before the embedding, the embedding, and the best on validation.

    `A+B` is chosen only as the best. A layer with several pools, post-processing or similarities is represented by the
    first of them, the embedding by itself.

    Args:
        layers: in network order.
        embedding: None if unknown or not measured: the last layer is used.

    Returns:
        At most five of them, in network order, each once.
    """
    single = _single(layers, embedding)
    chosen = {*single[:1], *single[(len(single) - 1) // 2 :][:1], *last_two_layers(layers, embedding)}
    measured = [ranked for ranked in layers if ranked in validation]
    if measured:
        chosen.add(max(measured, key=validation.__getitem__))
    return [ranked for ranked in dict.fromkeys(layers) if ranked in chosen]


def last_two_layers(layers: Sequence[RankedLayer], embedding: RankedLayer | None) -> list[RankedLayer]:
    """The layer before the embedding, if any, and the embedding, as in `headline_layers`."""
    single = _single(layers, embedding)
    names = [ranked.layer.layer for ranked in single]
    end = len(single)
    if embedding is not None and embedding.layer.layer in names:
        end = names.index(embedding.layer.layer) + 1
    return single[max(end - 2, 0) : end]


def _single(layers: Sequence[RankedLayer], embedding: RankedLayer | None) -> list[RankedLayer]:
    """One ranking of each layer, without `A+B`."""
    first_rankings: dict[str, RankedLayer] = {}
    for ranked in layers:
        if "+" not in ranked.layer.layer:
            first_rankings.setdefault(ranked.layer.layer, ranked)
    if embedding is not None and embedding in layers:
        first_rankings[embedding.layer.layer] = embedding
    return list(first_rankings.values())

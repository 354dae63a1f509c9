"""Layer expressions, `A+B` among them -> the layers that they name, and the taps that these take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from layerprobe.system.errors import RecipeError
from layerprobe.taps.capture import Tap
from layerprobe.taps.expressions import MODULES, execution_order, find_taps, skipped_pools
from layerprobe.taps.measuring import Measured
from layerprobe.values.layers import NO_POOL, TOKEN_POOLS, LayerKey, require_pool

_GLOB = "*?["


@dataclass(frozen=True)
class Concatenated:
    """`A+B`: layers whose features are put side by side, each normalised first. They are made of stored features.

    Args:
        members: two or more, in execution order. All but vectors have the same pool.
    """

    members: tuple[Tap, ...]

    @property
    def layer(self) -> str:
        """The members' names with `+` between."""
        return "+".join(tap.layer for tap in self.members)

    @property
    def pool(self) -> str:
        """Of the members that are no vectors; none where all are."""
        return next((tap.pool for tap in self.members if tap.pool != NO_POOL), NO_POOL)

    @property
    def dim(self) -> int:
        """Length of an image's feature vector."""
        return sum(tap.dim for tap in self.members)

    @property
    def key(self) -> LayerKey:
        """The layer with its pool."""
        return LayerKey(self.layer, self.pool)


Layer = Tap | Concatenated


def find_layers(expressions: Sequence[str], measured: Measured, *, pools: Sequence[str] | None = None) -> list[Layer]:
    """Layer expressions -> layers in execution order, each once; `A+B` comes after the last of its layers.

    Args:
        expressions: see `find_taps`; or several such names joined by `+` with one pool at the end, none of them a
            glob: `pool5.2+pool5.3@max`. Their order does not matter.
        pools: see `find_taps`; for `A+B` those that apply to all its layers but vectors. None: the default pools of
            its layers.
    """
    joint = [text for text in expressions if _is_joint(text, measured)]
    layers: list[Layer] = [*find_taps([text for text in expressions if text not in joint], measured, pools=pools)]
    layers += [layer for text in joint for layer in _joints(text, pools, measured)]
    by_key = {layer.key: layer for layer in layers}
    names = [tap.layer for tap in member_taps(layers)]
    places = {name: index for index, name in enumerate(execution_order(names, measured))}
    return sorted(by_key.values(), key=lambda layer: _place(layer, places))


def skipped_pool_lines(
    expressions: Sequence[str], measured: Measured, *, pools: Sequence[str] | None = None
) -> list[str]:
    """A line for each pool that `find_layers` skips for some layers, with the reason of the first."""
    skipped = skipped_pools([text for text in expressions if not _is_joint(text, measured)], measured, pools=pools)
    return [f"{pool} skipped for {', '.join(why)}: {next(iter(why.values()))}" for pool, why in skipped.items()]


def member_taps(layers: Iterable[Layer]) -> list[Tap]:
    """The taps that layers are made of, each once."""
    taps = (tap for layer in layers for tap in (layer.members if isinstance(layer, Concatenated) else [layer]))
    return list({tap.key: tap for tap in taps}.values())


def _is_joint(expression: str, measured: Measured) -> bool:
    layer, _, pool = expression.partition("@")
    if layer in measured.net.layers or layer in measured.net.parts:
        layer = ""
    return "+" in layer or ("+" in pool and pool not in TOKEN_POOLS)


def _place(layer: Layer, places: Mapping[str, int]) -> list[int]:
    """Where a layer stands: `A+B` after B and before whatever follows B."""
    return [places[tap.layer] for tap in reversed(member_taps([layer]))]


def _joints(expression: str, pools: Sequence[str] | None, measured: Measured) -> list[Concatenated]:
    """What `A+B` names: one for each pool that all its layers can have."""
    layer, _, pool = expression.partition("@")
    names = layer.split("+")
    _require_single(expression, names, pool)
    defaults = [tap.pool for tap in find_taps(names, measured) if tap.pool != NO_POOL]
    requested = [pool] if pool else list(pools or defaults) or [NO_POOL]
    joints: dict[LayerKey, Concatenated] = {}
    problems = []
    for kind in requested:
        require_pool(kind)
        try:
            members = find_taps([f"{name}@{kind}" for name in names], measured)
        except RecipeError as error:
            problems.append(error)
            continue
        if len(members) < len(names):
            raise RecipeError(f"{expression}: a layer stands there twice", fix="Name each layer once")
        joint = Concatenated(tuple(members))
        joints[joint.key] = joint
    if not joints:
        raise problems[0]
    return list(joints.values())


def _require_single(expression: str, names: Sequence[str], pool: str) -> None:
    """Check that what stands between `+` may be the name of one layer, and that there is one pool."""
    ambiguous = [name for name in names if name == MODULES or any(sign in name for sign in _GLOB)]
    if ambiguous or not all(names):
        problem = f"{ambiguous[0]} may be several layers" if ambiguous else "a layer is missing beside +"
        raise RecipeError(f"{expression}: {problem}", fix="Name every layer of A+B itself")
    if "+" in pool and pool not in TOKEN_POOLS:
        raise RecipeError(f"{expression}: A+B has one pool", fix="Write it once, at the end, like A+B@max")

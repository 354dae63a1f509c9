"""Maps of what makes an image similar to fixed features: integrated gradients and Grad-CAM."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from layerprobe.hooks import Layer, Measured, capture_layers, member_hooks
from layerprobe.hooks.hooks import parts_by_path, plain_path
from layerprobe.hooks.layouts import Layout, tensor_at
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.post_processing.unfitted import unit
from layerprobe.values.layers import RankedLayer

Embed = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> (B, D) float64
Score = Callable[[Tensor], Tensor]  # images (B, C, H, W) -> (B,) float64


@dataclass(frozen=True, eq=False)
class ScoredLayer:
    """A layer's features and their similarity.

    Args:
        ranked: its name; the similarity is cosine, dot or euclidean.
        post_process: the post-processing, differentiable; None for none.
    """

    layer: Layer
    ranked: RankedLayer
    post_process: FittedStep | None = None

    @contextlib.contextmanager
    def embedding(self, module: nn.Module) -> Iterator[Embed]:
        """The pooled and post-processed features of images, as long as the block lasts; see `hooks.capture_layers`."""
        hooks = member_hooks([self.layer])
        with _out_of_place(module), capture_layers(module, hooks, differentiable=True) as features_of:

            def embed(images: Tensor) -> Tensor:
                features = features_of(images)
                parts = [features[hook.key].double() for hook in hooks]
                joined = parts[0] if len(parts) == 1 else torch.cat([unit(block) for block in parts], 1)
                return joined if self.post_process is None else self.post_process(joined)

            yield embed

    def score(self, embed: Embed, other: Tensor) -> Score:
        """The similarity of images to the features (1, D) of another image."""
        return lambda images: similarities(embed(images), other, self.ranked.similarity)


def similarities(features: Tensor, other: Tensor, similarity: str) -> Tensor:
    """As the search has them: the cosine, 0 with a zero vector; the dot product; minus the distance.

    Args:
        features: (B, D).
        other: (1, D).

    Returns:
        (B,)
    """
    if similarity == "euclidean":
        distances: Tensor = torch.linalg.vector_norm(features - other, dim=1)
        return -distances
    if similarity == "cosine":
        features, other = unit(features), unit(other)
    return (features * other).sum(1)


@contextlib.contextmanager
def _out_of_place(module: nn.Module) -> Iterator[None]:
    """Modules such as nn.ReLU(inplace=True) give new tensors in the block: the map before them keeps its values."""
    changed = [submodule for submodule in module.modules() if getattr(submodule, "inplace", False) is True]
    try:
        for submodule in changed:
            submodule.inplace = False  # type: ignore[assignment] # a plain attribute
        yield
    finally:
        for submodule in changed:
            submodule.inplace = True  # type: ignore[assignment] # likewise


TOLERANCE = 0.01  # of the completeness error
SMALLEST = 0.05  # share of the larger similarity that a difference must be for the error to be relative to it
FEWEST, USUAL, MOST = 50, 100, 1600  # steps
_BEGINNING = 1e-4  # of the path, shorter than a step
_NARROWEST = 1e-4  # step that is still divided; a jump of the score is within each
_PIXELS = 2**18  # of the images that go through the network together


@dataclass(frozen=True, eq=False)
class Division:
    """Steps from the baseline to an image.

    Args:
        starts: (S,) float64, where each starts, as a share of the path.
        widths: (S,) float64.
    """

    starts: Tensor
    widths: Tensor

    @classmethod
    def equal(cls, steps: int) -> Division:
        """Steps of one width."""
        starts = torch.arange(steps, dtype=torch.float64) / steps
        return cls(starts, torch.full_like(starts, 1 / steps))

    def __len__(self) -> int:
        return len(self.starts)


@dataclass(frozen=True, eq=False)
class Integrated:
    """Integrated gradients of one image.

    Args:
        pixels: (H, W) float32, summed over the channels.
        difference: F(x) - F(x0).
        error: |sum - difference| / |difference|; inf for a difference of 0 that is missed.
        division: the steps of the midpoint rule.
        jumps: whether F changes by more than the tolerance at the very beginning of the path, so that no number of
            steps would do.
    """

    pixels: Tensor
    difference: float
    error: float
    division: Division
    jumps: bool


def integrated_gradients(score: Score, image: Tensor, division: Division | None = None) -> Integrated:
    """The integrated gradients of a score from the baseline 0, the mean colour of the normalisation.

    Sundararajan et al., Axiomatic Attribution for Deep Networks, ICML 2017, Eq. 1, by the midpoint rule. They sum to
    F(x) - F(x0), which the paper calls completeness. The path is divided into 50 equal steps. While the sum misses
    F(x) - F(x0) by more than 1 %, the steps with half of the error are divided into three, to at most 1,600 steps: the
    midpoint of the second keeps its gradient, and the error of a step is known from F at its two ends. Of a difference
    below 5 % of the larger similarity, 1 % of those 5 % are enough.

    Where the features of the baseline are a zero vector, as in an untrained network without biases, the cosine is 0
    there and jumps: 100 equal steps are taken.

    Args:
        image: (1, C, H, W) float32, normalised.
        division: the steps; None: as completeness needs.
    """
    start, beginning, end = _values(score, image, torch.tensor([0.0, _BEGINNING, 1.0])).tolist()
    difference = end - start
    allowed = TOLERANCE * max(abs(difference), SMALLEST * max(abs(end), abs(start)))
    jumps = abs(beginning - start) > allowed
    fixed = division or (Division.equal(USUAL) if jumps else None)
    path = _Path.of(score, image, fixed or Division.equal(FEWEST))
    while fixed is None and abs(path.sum - difference) > allowed:
        finer = path.refined(score, image)
        if finer is None:
            break
        path = finer
    missed = abs(path.sum - difference)
    error = missed / abs(difference) if difference else float("inf") if missed else 0.0
    return Integrated(path.pixels, difference, error, path.division, jumps)


@dataclass(frozen=True, eq=False)
class _Path:
    """What is known of each step.

    Args:
        maps: (S, H, W) float32, the gradient at the midpoint times the image, summed over the channels.
        changes: (S,) float64, by how much the score changes; None: not computed yet.
    """

    division: Division
    maps: Tensor
    changes: Tensor | None = None

    @classmethod
    def of(cls, score: Score, image: Tensor, division: Division) -> _Path:
        """Along the steps of a division."""
        return cls(division, _maps_at(score, image, division.starts + division.widths / 2))

    @property
    def parts(self) -> Tensor:
        """(S,) what each step adds to the sum."""
        return self.division.widths * self.maps.double().sum((1, 2)).cpu()

    @property
    def sum(self) -> float:
        """The sum of the integrated gradients."""
        return float(self.parts.sum())

    @property
    def pixels(self) -> Tensor:
        """(H, W) float32, the integrated gradients summed over the channels."""
        return torch.einsum("s,shw->hw", self.division.widths.to(self.maps), self.maps)

    def refined(self, score: Score, image: Tensor) -> _Path | None:
        """With the fewest steps that have half of the error in three; None where no step can be divided."""
        starts, widths, changes = self.division.starts, self.division.widths, self.changes
        if changes is None:  # of equal steps, where each ends where the next starts
            changes = _values(score, image, torch.cat([starts, torch.ones(1)])).diff()
        errors = torch.where(widths > _NARROWEST, (self.parts - changes).abs(), 0)
        order = errors.argsort(descending=True, stable=True)
        count = int((errors[order].cumsum(0) < errors.sum() / 2).sum()) + 1
        divided = order[: min(count, (MOST - len(order)) // 2)]
        divided = divided[errors[divided] > 0]
        if not len(divided):
            return None
        thirds, first = widths[divided] / 3, starts[divided]
        second, third = first + thirds, first + 2 * thirds
        at_ends = _values(score, image, torch.cat([first, second, third, third + thirds])).reshape(4, -1)
        of_thirds = at_ends.diff(dim=0)
        outer = torch.cat([first, third])
        maps = torch.cat([self.maps, _maps_at(score, image, outer + thirds.repeat(2) / 2)])
        # The second third takes the place of its step, whose midpoint it has.
        starts, widths, changes = (
            torch.cat([column.index_copy(0, divided, inner), outer_values])
            for column, inner, outer_values in (
                (starts, second, outer),
                (widths, thirds, thirds.repeat(2)),
                (changes, of_thirds[1], torch.cat([of_thirds[0], of_thirds[2]])),
            )
        )
        return _Path(Division(starts, widths), maps, changes)


def _batches(image: Tensor, shares: Tensor) -> Iterator[Tensor]:
    """The image at shares of the path, as many at a time as fit."""
    for some in shares.split(max(1, _PIXELS // image[0, 0].numel())):
        yield some.to(image)[:, None, None, None] * image


def _values(score: Score, image: Tensor, shares: Tensor) -> Tensor:
    """(S,) float64 the score at shares of the path."""
    with torch.no_grad():
        return torch.cat([score(images).double().cpu() for images in _batches(image, shares)])


def _maps_at(score: Score, image: Tensor, shares: Tensor) -> Tensor:
    """(S, H, W) the gradient of the score at shares of the path, times the image, summed over the channels."""
    maps = []
    for images in _batches(image, shares):
        with torch.enable_grad():
            images.requires_grad_()
            (gradients,) = torch.autograd.grad(score(images).sum(), images)
        maps.append((gradients * image).sum(1).detach())
    return torch.cat(maps)


@dataclass(frozen=True)
class MapCall:
    """A call of a module whose output is a map, or tokens whose patches are one.

    Args:
        number: of the call among those of its module in a forward, from 1.
    """

    layer: str
    module: str
    number: int
    layout: Layout

    def __str__(self) -> str:
        return f"{self.layer} ({self.layout.grid[0]}x{self.layout.grid[1]})"


def maps_before(layer: Layer, measured: Measured) -> list[MapCall]:
    """The maps of several places at or before a layer, among the named layers and itself, the last one first.

    The layer need not depend on each of them: a class token does not on the patch tokens beside it.
    """
    calls = [measured.calls[hook.module][hook.call - 1].order for hook in member_hooks([layer])]
    hooked_names = {hook.module: hook.layer for hook in member_hooks([layer])}
    names = {plain_path(path): name for name, path in measured.net.layers.items()} | hooked_names
    maps = {
        call.order: MapCall(name, path, number, call.layout)
        for path, name in names.items()
        for number, call in enumerate(measured.calls.get(path, ()), start=1)
        if call.order <= max(calls)
        and isinstance(call.layout, Layout)
        and call.layout.kind != "vector"
        and call.layout.in_rows
        and prod(call.layout.grid) > 1
    }
    return [maps[order] for order in sorted(maps, reverse=True)]


@contextlib.contextmanager
def watch_map(module: nn.Module, at: MapCall) -> Iterator[nn.Module]:
    """A module that a map goes through during forwards in the block, as (B, C, h, w) whatever its layout.

    It must be entered before the hooks of the same layer, whose hooks then see what comes out of it.
    """
    through, calls = nn.Identity(), 0

    def begin(_module: nn.Module, _inputs: object) -> None:
        nonlocal calls
        calls = 0

    def hook(_module: nn.Module, _inputs: object, output: object) -> object:
        nonlocal calls
        calls += 1
        if calls != at.number:
            return None
        # Of an output of several parts, the part itself is overwritten.
        tensor = output.clone() if isinstance(output, Tensor) else tensor_at(output, at.layout.part)
        places = at.layout.patches(at.layout.arranged(tensor))
        places.copy_(through(places.clone()))
        return tensor if isinstance(output, Tensor) else None

    handles = [module.register_forward_pre_hook(begin), parts_by_path(module)[at.module].register_forward_hook(hook)]
    try:
        yield through
    finally:
        for handle in handles:
            handle.remove()


def grad_cam(score: Score, through: nn.Module, image: Tensor) -> Tensor:
    """What each channel adds to Grad-CAM of a score: the map times its mean gradient; the sum is Grad-CAM.

    Selvaraju et al., Grad-CAM, ICCV 2017, Eqs. 1 and 2, by captum; without the ReLU of Eq. 2, which would hide what
    makes images less similar.

    Args:
        through: of `watch_map`.
        image: (1, C, H, W).

    Returns:
        (C', h, w) for a map of C' channels; 0 where the score does not depend on the map.
    """
    from captum.attr import LayerGradCam

    # The parameters of a frozen network ask for no gradient.
    image_with_gradient, unused = image.clone().requires_grad_(), {"allow_unused": True, "materialize_grads": True}
    maps: Tensor = LayerGradCam(score, through).attribute(
        image_with_gradient, attr_dim_summation=False, grad_kwargs=unused
    )
    return maps.detach()[0]

"""The values of figures besides scores and matrices: histograms, curves, post-processing and neighbours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Score


@dataclass(frozen=True)
class Histogram:
    """Histogram of the similarities of pairs of images, as in Zhang et al. (2018), Fig. 4.

    Args:
        epoch: 0 = before any step.
        edges: B + 1 ascending numbers, the ends of the bins.
        median: of the similarities; None without a pair.
        above: share of the pairs more similar than the median pair of the same class, ties counted half; None without
            a pair of either kind.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    pairs: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    n: int
    median: float | None = None
    above: float | None = None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"{len(self.counts)} counts need one edge more, got {len(self.edges)}")


Vector = tuple[float, float]  # of a layer of two dimensions


@dataclass(frozen=True)
class PlaneFeatures:
    """The features of a layer of two dimensions, with the classifier's weights where the loss has them.

    Of a layer of three dimensions they are directions: azimuth and elevation.

    Args:
        epoch: 0 = before any step.
        points: (N, 2); of directions the azimuth in [-180, 180] and the elevation in [-90, 90], in degrees.
        classes: N names.
        weights: class and its weight vector; empty without a classifier of this layer, and for directions.
        origin: the feature that the classifier takes for zero.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    points: tuple[Vector, ...]
    classes: tuple[str, ...]
    weights: tuple[tuple[str, Vector], ...] = ()
    origin: Vector = (0.0, 0.0)
    notes: tuple[str, ...] = ()
    directions: bool = False


ProjectionMethod = Literal["pca", "tsne", "umap"]
PROJECTIONS: tuple[ProjectionMethod, ...] = get_args(ProjectionMethod)
ImageSample = Literal["all", "whole classes", "images"]  # what was drawn, where not all images are


@dataclass(frozen=True)
class Projection:
    """The features of a layer in two dimensions.

    Args:
        epoch: 0 = before any step.
        points: (N, 2).
        images: N ids and classes.
        right: N, whether the nearest neighbour by the layer is right, None where right and wrong ones tie; empty where
            that is not shown.
        marked: N, whether an image stands out.
        total: images of the split, of which N are drawn.
        kept: share of an image's nearest neighbours in the layer, among the N, that are among its nearest in the
            picture, on average; None for a single image.
        chance: that share in a random picture.
        variance: share that the picture has of the features' variance; None where it is no PCA.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    method: ProjectionMethod
    points: tuple[Vector, ...]
    images: tuple[Item, ...]
    right: tuple[bool | None, ...]
    marked: tuple[bool, ...]
    total: int
    kept: float | None
    chance: float
    variance: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class GradientSizes:
    """Length of the gradient of a softmax loss with respect to the feature, of some training images.

    Args:
        epoch: 0 = before any step.
        samples: centroid, boundary or incorrect.
        n: number of these images.
        axis: alpha, the inverse of the temperature, or norm, of the feature.
        own: alpha as trained, or the median norm of all training images.
        places: P ascending numbers.
        values: P medians over the images.
        low: P lower quartiles.
        high: P upper quartiles.
    """

    run: str
    epoch: int
    ranked: RankedLayer
    samples: str
    n: int
    axis: str
    own: float
    places: tuple[float, ...]
    values: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Curve:
    """Numbers of one layer along an axis: recall by gallery size, variance by dimension.

    Args:
        epoch: 0 = before any step.
        measure: of the values: R@1, or `share of the variance`.
        places: P ascending numbers.
        values: P fractions; None where there is no valid number, with the reason in `notes`.
        low: P lower ends of 95 % intervals, None where a value has none; empty without any interval.
        n: number of images; for a mean over trainings, of trainings.
        units: what the intervals are over.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    measure: str
    axis: str
    places: tuple[float, ...]
    values: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    n: int = 0
    notes: tuple[str, ...] = ()
    units: SamplingUnits | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.places), len(self.values)} | {len(ends) for ends in (self.low, self.high) if ends}
        if len(lengths) != 1:
            raise ValueError(f"lists of different lengths: {sorted(lengths)}")

    @property
    def kind(self) -> IntervalKind:
        """The kind of the intervals."""
        return self.units.kind if self.units else IntervalKind()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and whether the units of the intervals are few."""
        return (*(self.units.remarks if self.units else ()), *self.notes)


@dataclass(frozen=True)
class Repeated:
    """A number at one place of an axis, in trainings that differ in the seed alone.

    Args:
        place: a text where the axis has categories.
        each: seed -> its valid number.
        mean: None where a training has no valid number.
        interval: 95 %, of the mean; None for a single training, or equal ones.
    """

    place: float | str
    each: Mapping[int, float]
    mean: float | None
    interval: Interval | None = None


@dataclass(frozen=True)
class RepeatedLine:
    """The numbers of one layer along an axis.

    Args:
        name: the keys in which its runs differ from those of other lines; empty where there are none.
        layer: empty for a number of the whole network.
        points: in the order of the axis.
        differences: from the first line, paired by seed.
    """

    name: str
    layer: str
    points: tuple[Repeated, ...]
    differences: tuple[Repeated, ...] = ()


@dataclass(frozen=True)
class OverTrainings:
    """Lines along a key of recipes, or along K.

    Args:
        places: the axis: ascending numbers, or texts.
        epochs: that the numbers are of, ascending.
        runs: all of them.
        own_classes: whether trainings of one point have test classes of their own.
        weights: of a single run of one weights file, instead of its epoch; else empty.
    """

    measure: str
    split: str
    axis: str
    places: tuple[float | str, ...]
    lines: tuple[RepeatedLine, ...]
    epochs: tuple[int, ...]
    runs: tuple[str, ...]
    own_classes: bool = False
    notes: tuple[str, ...] = ()
    weights: str = ""


@dataclass(frozen=True)
class Sized:
    """A score of a layer, with the number of its dimensions.

    Args:
        dim: numbers, or bits, of each image; None if unknown.
        equal: whether its post-processing gives every layer that many.
        chosen: whether its post-processing, possibly none, is the layer's best post-processing.
        number: the type of its numbers: float32, float16, int8 or bit; empty where that does not matter.
        size: of an image's vector in bytes; None likewise.
    """

    score: Score
    dim: int | None
    equal: bool
    chosen: bool = False
    number: str = ""
    size: int | None = None

    @property
    def percent(self) -> float:
        """The value in percent; 0 without a valid one."""
        return 100 * (self.score.value or 0.0)

    @property
    def heights(self) -> tuple[float, ...]:
        """The value and the ends of its interval, in percent."""
        value = () if self.score.value is None else (self.percent,)
        return (*value, *(self.score.interval.percent if self.score.interval else ()))


@dataclass(frozen=True)
class PostProcessings:
    """The layers of a run, raw and post-processed.

    Args:
        epoch: of all values; 0 = before any step.
        values: in the order of layers in the network, then of post-processing, `none` first.
        chosen_on: the split on which the best post-processing of each layer was chosen; None if unknown.
    """

    run: str
    epoch: int
    split: str
    values: tuple[Sized, ...]
    chosen_on: str | None = None
    notes: tuple[str, ...] = ()


def equal_dimensions(post_processings: Iterable[PostProcessings]) -> list[int]:
    """The equal dimensions of the layers, ascending."""
    return sorted({sized.dim or 0 for of_run in post_processings for sized in of_run.values if sized.equal})


@dataclass(frozen=True)
class Selected:
    """The selected candidate of the choice that a run keeps.

    Args:
        name: for people, such as `pool5.2, partially whitened to 128`.
        score: of it, on test where there are test classes, else on those that it was chosen on.
        dim: numbers, or bits, of an image's vector.
        within_folds: whether the score is of fifths of the classes, each searched in itself; else of the whole gallery.
        embedding: score of the current embedding by the same search, where that is not of the whole gallery.
        number: the type of its numbers, as in `Sized`.
        size: of an image's vector in bytes; None if unknown.
    """

    name: str
    score: Score
    dim: int
    within_folds: bool = False
    embedding: Score | None = None
    number: str = ""
    size: int | None = None


@dataclass(frozen=True)
class Item:
    """A query or an item of the gallery."""

    id: str
    name: str


@dataclass(frozen=True)
class FoundItem:
    """One of a query's nearest items.

    Args:
        similarity: to the query; for hamming minus the number of different bits.
        right: whether it is of the query's class, or in the data set's lists.
    """

    item: Item
    similarity: float
    right: bool


@dataclass(frozen=True)
class QueryNeighbours:
    """The nearest items of a query by one layer, nearest first; without the query itself.

    Args:
        epoch: 0 = before any step.
        notes: why this query is shown, and caveats.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    query: Item
    found: tuple[FoundItem, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetThreshold:
    """Where a threshold lies that was set at a false accept rate on other classes.

    Args:
        asked: that rate.
    """

    asked: float
    false_accepts: float
    false_rejects: float


@dataclass(frozen=True)
class ErrorRates:
    """The false accept and false reject rates of a layer over all thresholds, the lowest first.

    Args:
        epoch: 0 = before any step.
        false_accepts: P rates, descending; empty where there are none, with the reason in `notes`.
        false_rejects: P rates, ascending.
        equal_error_rate: where the two are equal; None without rates.
        n: number of images.
        set_on: the split that thresholds were set on; None without any.
        thresholds: those set there, on these classes.
    """

    run: str
    epoch: int
    split: str
    ranked: RankedLayer
    false_accepts: tuple[float, ...]
    false_rejects: tuple[float, ...]
    equal_error_rate: float | None
    n: int
    set_on: str | None = None
    thresholds: tuple[SetThreshold, ...] = ()
    notes: tuple[str, ...] = ()

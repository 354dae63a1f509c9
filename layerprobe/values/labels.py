"""The result of `layerprobe labels`: labels that look wrong, duplicates of different labels, and divided classes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LabelledImage:
    """An image with its split and its label, a name."""

    image: str
    split: str
    label: str


@dataclass(frozen=True)
class SuspectedLabel:
    """A label that looks wrong.

    Args:
        suggested: the label of most of the image's neighbours.
        layers: by how many of the layers.
        votes: how many of the neighbours, by all layers.
    """

    image: LabelledImage
    suggested: str
    layers: int
    votes: int


@dataclass(frozen=True)
class Duplicates:
    """Two images that are nearly the same, and have different labels.

    Args:
        distance: as a share of the median distance of a nearest neighbour that is no exact copy, by the layer where it
            is largest.
        is_same: whether by every layer they are the same up to rounding.
    """

    images: tuple[LabelledImage, LabelledImage]
    distance: float
    is_same: bool


@dataclass(frozen=True)
class DividedLabel:
    """A label whose images fall into groups that are not among each other's neighbours.

    Args:
        images: how many have it.
        groups: the images of each group of three or more, the largest first.
    """

    label: str
    images: int
    groups: tuple[tuple[LabelledImage, ...], ...]


@dataclass(frozen=True)
class ReviewedLabels:
    """What looks wrong about the labels of a run's images.

    Args:
        run: its name.
        layers: whose neighbours are compared.
        images: how many have a label.
        votes: neighbours of an image by all layers.
        recall: the share of images whose nearest neighbour has their label, by the layer where it is highest.
        suspects: those with most evidence first.
        wrong: an estimate of how many of the suspects have a wrong label, if a wrong label is any other one with the
            same chance; None where it cannot be had.
        duplicates: the closest first.
        divided: those with the largest second group first.
        verdict: the numbers in a sentence.
    """

    run: str
    epoch: int
    splits: tuple[str, ...]
    layers: tuple[str, ...]
    images: int
    votes: int
    recall: float
    suspects: tuple[SuspectedLabel, ...]
    wrong: float | None
    duplicates: tuple[Duplicates, ...]
    divided: tuple[DividedLabel, ...]
    verdict: str
    notes: tuple[str, ...] = ()

"""Positions of labels: none overlaps another, and if possible none covers a point that it does not name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from layerprobe.values.retrieval import BoolArray, FloatArray, IntArray

NEAR = 10.0  # a label farther off than this needs a line to its point
# Distances from a point to its label, and how many places around the point there are at each.
_DISTANCES = (4.5, 7, 10, 13, 19, 26, 35, 46, 60, 78, 100, 130, 170)
_TURNS = 24
_PAD = 1.0  # kept free around a label
_MARKER = 4.0  # radius of a marker
_CLEAR = 1.5  # how much nearer a label should be to its own point than to others
_STEP = 2.5  # between the places on a path that are looked at
_MOST_SAMPLES = 10_000  # with more of them, as thousands of paths have, one in each square is looked at
# How bad a place is, in points of distance.
_OVERLAP, _STRUCK, _CROSSING, _MARK, _PASSING, _MISLED, _DOUBT = 1e4, 200.0, 50.0, 60.0, 25.0, 13.0, 6.0
_COVERED, _PATH = 60.0, 2.0  # of a path: once, and for each place on it
_ROOM = 11.0  # an optional label is written where its place is no worse than this
_ROUNDS = 5
_TRIES = 40  # labels placed in all orders that are tried, about


@dataclass(frozen=True, eq=False)
class Obstacles:
    """What labels should not cover, in points from the lower left corner of the axes.

    Args:
        marks: (M, 2) places of markers.
        paths: (P, 2) each; lines through their points.
        boxes: (B, 4) left, bottom, right, top of other texts.
    """

    area: tuple[float, float]
    marks: FloatArray = field(default_factory=lambda: np.empty((0, 2)))
    paths: Sequence[FloatArray] = ()
    boxes: FloatArray = field(default_factory=lambda: np.empty((0, 4)))


def place_labels(
    points: FloatArray, sizes: FloatArray, obstacles: Obstacles, optional: Sequence[bool]
) -> list[tuple[float, float] | None]:
    """Find a place for the label of each point.

    Of all places around its point a label gets the one where least is wrong: it should lie within the axes, cover
    no text, no marker and no path, be near its point, and nearer to that than to other labelled points. As labels stand
    in each other's way, this is repeated. Optional labels come last, and only where there is room beside their points.

    Args:
        points: (N, 2), in points from the lower left corner of the axes.
        sizes: (N, 2) width and height of the labels in points.

    Returns:
        The lower left corners; None for an omitted label.
    """
    candidates = [_boxes_around(point, size) for point, size in zip(points, sizes, strict=True)]
    samples = Samples.from_paths(obstacles.paths)
    costs = [_cost_alone(boxes, i, points, obstacles, samples) for i, boxes in enumerate(candidates)]
    needed = [i for i, left_out in enumerate(optional) if not left_out]
    # Which of two labels gives way depends on the order, so several are tried.
    tried = max(1, min(len(needed), _TRIES // max(1, len(needed))))
    orders = [needed[i:] + needed[:i] for i in range(tried)]
    _, label_boxes = min((_settle(order, points, candidates, costs) for order in orders), key=itemgetter(0))
    for i in sorted(set(range(len(points))) - set(needed)):
        cost = costs[i] + _cost_beside(candidates[i], i, points, label_boxes)
        if cost.min() <= _ROOM:
            label_boxes[i] = candidates[i][int(np.argmin(cost))]
    corners = [label_boxes[i][:2].tolist() if i in label_boxes else None for i in range(len(points))]
    return [None if corner is None else (corner[0], corner[1]) for corner in corners]


def _settle(
    order: Sequence[int], points: FloatArray, candidates: Sequence[FloatArray], costs: Sequence[FloatArray]
) -> tuple[float, dict[int, FloatArray]]:
    """Place labels one after another until none moves.

    Args:
        points: (N, 2) the labelled points.
        candidates: N times (C, 4), the boxes to choose from.
        costs: N times (C,), how bad each of them is in itself.

    Returns:
        How bad all places are together, and the box of each label.
    """
    boxes: dict[int, FloatArray] = {}
    total = np.inf
    for _ in range(_ROUNDS):
        before, total = dict(boxes), 0.0
        for i in order:
            cost = costs[i] + _cost_beside(candidates[i], i, points, boxes)
            boxes[i] = candidates[i][int(np.argmin(cost))]
            total += float(cost.min())
        if all(i in before and (before[i] == boxes[i]).all() for i in order):
            break
    return total, boxes


def end_of_line(point: FloatArray, box: FloatArray) -> FloatArray:
    """Where a line from a point to a label ends: the nearest place of the label's box (4,)."""
    return np.clip(point, box[:2], box[2:])


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions apart as little as possible (in least squares), keeping their order.

    Returns:
        The new positions, in the order given.
    """
    order = np.argsort(positions, kind="stable")
    # With i times the gap taken off the i-th position, the nearest non-decreasing sequence is wanted: neighbours in
    # descending order are replaced by their mean (pool adjacent violators).
    pools: list[list[float]] = []  # mean, count
    for rank, i in enumerate(order):
        pools.append([positions[i] - rank * gap, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            mean, count = pools.pop()
            before, members = pools[-1]
            pools[-1] = [(before * members + mean * count) / (members + count), members + count]
    level = np.repeat([mean for mean, _ in pools], [int(count) for _, count in pools])
    top = high - (len(order) - 1) * gap
    level = np.clip(level, low, top) if top >= low else np.full(len(order), (low + top) / 2)
    moved = np.empty(len(order))
    moved[order] = level + np.arange(len(order)) * gap
    return [float(position) for position in moved]


def first_free(boxes: FloatArray, paths: Sequence[tuple[FloatArray, float]]) -> int | None:
    """The index of the first of some boxes (C, 4) that no path comes near; None where each is covered.

    Args:
        paths: (P, 2) each, and how far to both sides it is drawn.
    """
    free = np.ones(len(boxes), bool)
    for path, reach in paths:
        free &= ~_contains(boxes + reach * np.array([-1, -1, 1, 1]), path).any(1)
    return int(np.argmax(free)) if free.any() else None


def _boxes_around(point: FloatArray, size: FloatArray) -> FloatArray:
    """(C, 4) boxes of a label on rectangles around its point; the first is to the right of it."""
    angles = 2 * np.pi * np.arange(_TURNS) / _TURNS
    turns = np.stack([np.cos(angles), np.sin(angles)], 1)
    turns /= np.abs(turns).max(1, keepdims=True)
    reach = size / 2 + np.array(_DISTANCES)[:, None, None]
    centres = (point + turns * reach).reshape(-1, 2)
    return np.concatenate([centres - size / 2, centres + size / 2], 1)


def _cost_alone(boxes: FloatArray, i: int, points: FloatArray, obstacles: Obstacles, samples: Samples) -> FloatArray:
    """How bad each of the boxes (C, 4) of label `i` is, whatever the other labels do."""
    point = points[i]
    distance = _distance_to_nearest(boxes, point[None])
    outside = np.maximum(-boxes[:, :2], boxes[:, 2:] - obstacles.area).max(1)
    marks, other_points = (positions[~_is_same(positions, point)] for positions in (obstacles.marks, points))
    # A path through the point is its own.
    paths_through_point = samples.corner_path[_is_same(samples.corners, point)]
    foreign = samples.points[~np.isin(samples.path, paths_through_point)]
    cost = distance + np.where(outside > 0, _OVERLAP + outside, 0)
    cost += _OVERLAP * _overlaps(boxes, obstacles.boxes).sum(1)
    cost += _MARK * _contains(boxes, marks).sum(1)
    cost += _PASSING * _passes_marker(point, np.clip(point, boxes[:, :2], boxes[:, 2:]), marks)
    on_path = _contains(boxes, samples.points)
    cost += _COVERED * on_path.any(1) + _PATH * on_path.sum(1)
    for rivals, doubt in ((other_points, _MISLED), (foreign, _DOUBT)):
        cost += doubt * (_distance_to_nearest(boxes, rivals) < distance + _CLEAR)
    return cost


def _cost_beside(boxes: FloatArray, i: int, points: FloatArray, label_boxes: dict[int, FloatArray]) -> FloatArray:
    """How bad each of the boxes (C, 4) of label `i` is beside the labels that have a place."""
    cost = np.zeros(len(boxes))
    ends = np.clip(points[i], boxes[:, :2], boxes[:, 2:])
    for j, box in label_boxes.items():
        if j != i:
            end = end_of_line(points[j], box)
            cost += _OVERLAP * _overlaps(boxes, box[None]).sum(1)
            cost += _CROSSING * _crosses(points[i], ends, points[j], end)
            struck = _contains(box[None], _points_along(points[i], ends).reshape(-1, 2)).reshape(len(boxes), -1).any(1)
            cost += _STRUCK * (struck | _contains(boxes, _points_along(points[j], end[None])[0]).any(1))
    return cost


def _distance_to_nearest(boxes: FloatArray, points: FloatArray) -> FloatArray:
    """(C,) from each box to the nearest of some points."""
    off = points - np.clip(points, boxes[:, None, :2], boxes[:, None, 2:])
    return np.asarray(np.hypot(off[..., 0], off[..., 1]).min(1, initial=np.inf))


def _is_same(places: FloatArray, point: FloatArray) -> BoolArray:
    return np.asarray((np.abs(places - point) < 1e-6).all(-1))


def _overlaps(boxes: FloatArray, other_boxes: FloatArray) -> BoolArray:
    """(C, B) whether two boxes overlap."""
    low, high = boxes[:, None, :2] - _PAD, boxes[:, None, 2:] + _PAD
    return np.asarray(((low < other_boxes[None, :, 2:]) & (high > other_boxes[None, :, :2])).all(-1))


def _contains(boxes: FloatArray, points: FloatArray) -> BoolArray:
    """(C, P) whether a point lies in a box."""
    low, high = boxes[:, None, :2] - _PAD, boxes[:, None, 2:] + _PAD
    return np.asarray(((low < points) & (points < high)).all(-1))


def _points_along(start: FloatArray, ends: FloatArray) -> FloatArray:
    """(C, 9, 2) places on the lines from a point to some others, without it."""
    return np.asarray(start + np.linspace(0.1, 1, 9)[:, None] * (ends - start)[:, None])


def _passes_marker(start: FloatArray, ends: FloatArray, marks: FloatArray) -> BoolArray:
    """(C,) whether the lines from a point to some others pass over a marker; short ones are not drawn."""
    off = _points_along(start, ends)[:, :, None] - marks
    near = (np.hypot(off[..., 0], off[..., 1]) < _MARKER).any((1, 2))
    return np.asarray(near & (np.hypot(*(ends - start).T) > NEAR))


def _crosses(start: FloatArray, ends: FloatArray, other: FloatArray, end: FloatArray) -> BoolArray:
    """(C,) whether the lines from a point cross the line of another label."""

    def side(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
        ab, ac = np.broadcast_arrays(b - a, c - a)
        return np.asarray(ab[..., 0] * ac[..., 1] - ab[..., 1] * ac[..., 0])

    is_between = side(start, ends, other) * side(start, ends, end) < 0
    return np.asarray(is_between & (side(other, end, start) * side(other, end, ends) < 0))


@dataclass(frozen=True, eq=False)
class Samples:
    """Points on some paths.

    Args:
        points: (S, 2), a step apart on each path; of thousands of paths one in each square of that side.
        path: (S,) which path each is on.
        corners: (P, 2) the points that the paths go through.
    """

    points: FloatArray
    path: IntArray
    corners: FloatArray
    corner_path: IntArray

    @classmethod
    def from_paths(cls, paths: Sequence[FloatArray]) -> Samples:
        """Sample paths of (P, 2) points each."""
        corners, corner_path = _concatenate(paths)
        points, path = _concatenate([sample_path(line) for line in paths])
        if len(points) > _MOST_SAMPLES:
            _, firsts = np.unique(np.floor(points / _STEP), axis=0, return_index=True)
            points, path = points[firsts], path[firsts]
        return cls(points, path, corners, corner_path)


def _concatenate(arrays: Sequence[FloatArray]) -> tuple[FloatArray, IntArray]:
    """(N, 2) the rows of all arrays, and (N,) the index of the array of each row."""
    return np.concatenate([np.empty((0, 2)), *arrays]), np.repeat(np.arange(len(arrays)), list(map(len, arrays)))


def sample_path(path: FloatArray) -> FloatArray:
    """(S, 2) points on a path, a step apart."""
    counts = (np.hypot(*(path[1:] - path[:-1]).T) // _STEP).astype(np.int64) + 1
    piece = np.repeat(np.arange(len(counts)), counts)
    shares = (np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)) * (1 / counts[piece])
    return np.concatenate([path[-1:], path[piece] + shares[:, None] * (path[piece + 1] - path[piece])])

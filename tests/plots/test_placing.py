from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from layerprobe.plots.placing import Obstacles, Samples, end_of_line, first_free, place_labels, sample_path, spread
from layerprobe.values.retrieval import FloatArray

AREA = (200.0, 100.0)


def place(
    points: Sequence[tuple[float, float]], obstacles: Obstacles, optional: Sequence[bool] = ()
) -> list[list[float]]:
    """Boxes of labels of 30 x 10 points: left, bottom, right, top; empty for one that is left out."""
    sizes = np.array([(30.0, 10.0)] * len(points))
    found = place_labels(np.array(points), sizes, obstacles, optional or [False] * len(points))
    return [[] if at is None else [*at, at[0] + 30, at[1] + 10] for at in found]


def holds(box: Sequence[float], points: FloatArray) -> bool:
    left, bottom, right, top = box
    return any(left < x < right and bottom < y < top for x, y in points.tolist())


def test_a_label_alone_stands_to_the_right_of_its_point() -> None:
    assert place([(100, 50)], Obstacles(AREA)) == [[104.5, 45, 134.5, 55]]


def test_a_label_at_the_edge_stays_inside() -> None:
    for point in ((199.0, 50.0), (1.0, 1.0), (100.0, 99.0)):
        ((left, bottom, right, top),) = place([point], Obstacles(AREA))
        assert left >= 0
        assert bottom >= 0
        assert right <= 200
        assert top <= 100


def test_a_label_covers_no_marker_text_or_path_where_there_is_room() -> None:
    path = np.array([(100.0, 50.0), (160.0, 50.0), (160.0, 90.0)])
    marks, texts = np.array([(100.0, 50.0), (90.0, 50.0)]), np.array([(60.0, 55.0, 130.0, 70.0)])
    (box,) = place([(100, 50)], Obstacles(AREA, marks, [path], texts))
    assert not holds(box, sample_path(path))
    assert not holds(box, marks)
    assert box[3] <= 55


def test_a_label_is_nearer_to_its_point_than_to_others() -> None:
    points = [(100.0, 50.0), (106.0, 50.0)]
    first, second = place(points, Obstacles(AREA, np.array(points)))
    assert first[2] < 100
    assert second[0] > 106


def test_a_label_stands_off_rather_than_beside_a_point_that_has_another() -> None:
    points = [(100.0, 50.0), (100.0, 31.0)]
    texts = np.array([(20.0, 47.0, 97.0, 62.0), (103.0, 47.0, 180.0, 62.0)])
    (box, _) = place(points, Obstacles(AREA, np.array(points), boxes=texts))
    to_own, to_other = (np.hypot(*(end_of_line(np.array(at), np.array(box)) - at)) for at in points)
    assert to_own < to_other


def test_an_optional_label_is_left_out_where_there_is_no_room() -> None:
    wall = [np.array([(x, 0.0), (x, 100.0)]) for x in np.arange(60.0, 140.0, 3.0)]
    assert place([(100, 50)], Obstacles(AREA, paths=wall), [True]) == [[]]
    assert place([(100, 50)], Obstacles(AREA, paths=wall)) != [[]]
    assert place([(100, 50)], Obstacles(AREA), [True]) != [[]]


def test_a_line_ends_at_the_nearest_place_of_the_label() -> None:
    box = np.array([10.0, 0.0, 40.0, 10.0])
    assert end_of_line(np.array([0.0, 5.0]), box).tolist() == [10, 5]
    assert end_of_line(np.array([50.0, 30.0]), box).tolist() == [40, 10]


def test_places_on_a_path_are_at_most_a_step_apart() -> None:
    found = sample_path(np.array([(0.0, 0.0), (10.0, 0.0), (10.0, 4.0)]))
    assert {(0, 0), (10, 0), (10, 4)} <= set(map(tuple, found.tolist()))
    assert max(np.diff(np.sort(found[:, 0]))) <= 2.5


def test_of_thousands_of_paths_no_more_places_are_looked_at_than_there_are_squares() -> None:
    rng = np.random.default_rng(0)
    paths = [rng.uniform(0, 100, (20, 2)) for _ in range(500)]
    found = Samples.from_paths(paths)
    # 100 / 2.5 squares in each direction
    assert len(found.points) == len(np.unique(found.points // 2.5, axis=0)) == 40 * 40
    assert len(found.corners) == 500 * 20
    assert len(Samples.from_paths(paths[:2]).points) == sum(len(sample_path(path)) for path in paths[:2])


def test_positions_far_apart_stay() -> None:
    assert spread([10, 50, 30], 5, 0, 100) == [10, 50, 30]


def test_two_at_one_place_part_by_half_the_gap_each() -> None:
    assert spread([50, 50], 10, 0, 100) == [45, 55]


def test_neighbours_move_least_in_squares() -> None:
    # 0 at 40, 1 at 42, 2 at 44, 10 apart: centred on their mean of 42; the one at 90 stays.
    assert spread([40, 90, 42, 44], 10, 0, 100) == [32, 90, 42, 52]


def test_a_pushed_group_pushes_the_next() -> None:
    # 50 and 51 become 45.5 and 55.5, which is too near 60: all three stand around 161 / 3.
    assert spread([50, 51, 60], 10, 0, 100) == pytest.approx([161 / 3 - 10, 161 / 3, 161 / 3 + 10])


def test_positions_stay_within_the_bounds() -> None:
    assert spread([0, 1, 99, 100], 10, 0, 100) == [0, 10, 90, 100]


def test_too_many_keep_the_gap_and_stand_centred() -> None:
    assert spread([0, 0, 0], 10, 0, 10) == [-5, 5, 15]


def test_equal_positions_keep_the_order_given() -> None:
    first, second, third = spread([7, 7, 7], 1, 0, 100)
    assert first < second < third


def test_nothing_to_spread_is_nothing() -> None:
    assert spread([], 1, 0, 100) == []


@given(st.lists(st.floats(-50, 150), max_size=30), st.floats(0.1, 30))
def test_spread_positions_keep_gap_and_order(positions: list[float], gap: float) -> None:
    moved = spread(positions, gap, 0, 100)
    ordered = [moved[i] for i in np.argsort(positions, kind="stable")]
    assert all(after - before >= gap * (1 - 1e-9) for before, after in pairwise(ordered))
    if (len(positions) - 1) * gap <= 100:
        assert all(-1e-9 <= position <= 100 + 1e-9 for position in moved)


def test_the_first_box_that_no_path_comes_near_is_free() -> None:
    boxes = np.array([(0.0, 0.0, 30.0, 10.0), (40.0, 0.0, 70.0, 10.0)])
    assert first_free(boxes, []) == 0
    assert first_free(boxes, [(np.array([(20.0, 5.0)]), 0.0)]) == 1
    assert first_free(boxes, [(np.array([(20.0, 13.0)]), 1.0)]) == 0
    assert first_free(boxes, [(np.array([(20.0, 13.0)]), 4.0)]) == 1
    assert first_free(boxes, [(np.array([(35.0, 5.0)]), 6.0)]) is None

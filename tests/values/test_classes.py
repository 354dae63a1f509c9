from __future__ import annotations

import pytest

from layerprobe.values.classes import ComparedClass, Order, sort_classes

CLASSES = (
    ComparedClass("b", 2, 0.0, 1.0, -1.0, shrunk=-0.1),
    ComparedClass("a", 9, 0.2, 0.5, -0.3, shrunk=-0.2),
    ComparedClass("d", 3, 1.0, 0.0, 1.0, shrunk=0.3),
    ComparedClass("c", 3, 1.0, 0.5, 0.5, shrunk=0.3),
)


@pytest.mark.parametrize(("order", "names"), [("loss", "abcd"), ("gain", "dcba"), ("size", "acdb"), ("name", "abcd")])
def test_classes_are_sorted_by_what_is_shrunk_then_by_what_is_not(order: Order, names: str) -> None:
    assert "".join(x.name for x in sort_classes(CLASSES, order)) == names

from __future__ import annotations

from collections.abc import Sequence

import pytest

from layerprobe.workflow.run.class_names import class_name


@pytest.mark.parametrize(
    ("names", "label", "expected"),
    [(("cat", "dog"), 1, "dog"), (("cat", "dog"), 2, "2"), ((), 3, "3"), (("cat",), -1, "-1")],
)
def test_a_class_without_a_name_is_called_by_its_number(names: Sequence[str], label: int, expected: str) -> None:
    assert class_name(names, label) == expected

from __future__ import annotations

from layerprobe.values.choice import TruncationSavings
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.choose.run_candidates import cut_after
from tests.records import recorded

CUTS = {"a": [0.5, 0.25], "b": [0.125, None]}
NETWORK = {"layers": ["a", "b"], "embedding": ["b", "max"], "cuts": CUTS, "input": None, "files": {}}


def test_of_two_layers_one_of_unknown_multiply_adds_makes_the_share_unknown() -> None:
    record = recorded({"network": NETWORK})
    assert cut_after(record, LayerKey("a", "max")) == TruncationSavings(0.5, 0.25)
    assert cut_after(record, LayerKey("a+b", "max")) == TruncationSavings(0.125, None)

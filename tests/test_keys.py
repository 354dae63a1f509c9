from __future__ import annotations

import pytest

from layerprobe.keys import LayerKey


@pytest.mark.parametrize(
    "key", [LayerKey("pool5.3", "max"), LayerKey("layer4.2.relu#3", "grid:2"), LayerKey("a@b", "avg")], ids=str
)
def test_a_layers_key_reads_back_as_it_is_written(key: LayerKey) -> None:
    assert LayerKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["fc6", "@max", "fc6@", ""])
def test_text_that_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a layer and its pool, like 'pool5.3@max'"):
        LayerKey.parse(text)

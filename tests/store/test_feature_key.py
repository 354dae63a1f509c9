from __future__ import annotations

from dataclasses import replace

from layerprobe.store.feature_key import FeatureKey, key_attributes

KEY = FeatureKey("netA", 3, "test", "a1", "{}", "b2")


def test_the_key_of_a_network_of_layerprobes_own_names_no_package() -> None:
    assert "network" not in key_attributes(KEY)
    assert key_attributes(replace(KEY, network="timm 1.0.15"))["network"] == "timm 1.0.15"

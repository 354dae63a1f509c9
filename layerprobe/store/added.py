"""Whether stored ranks were made from, and their maps fitted on, the features that are stored."""

from __future__ import annotations

import contextlib
import json
from dataclasses import fields
from typing import Literal

from layerprobe.store.feature_key import FeatureKey
from layerprobe.store.features import FeatureHead
from layerprobe.store.ranks import RankFile
from layerprobe.store.rows import has_facts
from layerprobe.values.layers import RankedLayer, members_of


def is_made_from(
    ranks: RankFile, features: FeatureHead, ranked: RankedLayer, role: Literal["queries", "gallery"] = "queries"
) -> bool:
    """Whether a layer's ranks were made from the features of it that a feature file holds today."""
    if ranked not in ranks.groups:
        return False
    with contextlib.suppress(ValueError):
        key = json.loads(ranks.groups[ranked].facts[role])
        return _held(features, ranked) and isinstance(key, dict) and has_facts(features.facts, key)
    return False


def is_fitted_on(ranks: RankFile, training: FeatureHead | None, ranked: RankedLayer) -> bool:
    """Whether a layer was reduced by a map fitted on the stored features.

    Args:
        training: None where there are none.

    Returns:
        True where nothing was fitted.
    """
    if ranked not in ranks.groups:
        return False
    recorded = ranks.groups[ranked].facts["reduction"]
    if not recorded or recorded.startswith("seed "):
        return True
    if training is None:
        return False
    with contextlib.suppress(ValueError):
        facts = {field.name: training.facts.get(field.name, "") for field in fields(FeatureKey)}
        key = FeatureKey(**{**facts, "epoch": int(facts["epoch"])})  # type: ignore[arg-type] # texts but for that
        return _held(training, ranked) and recorded.startswith(f"{key} ")
    return False


def _held(features: FeatureHead, ranked: RankedLayer) -> bool:
    """Whether a feature file has the features of a layer, or of the members that it is made of."""
    return bool(members_of(ranked.layer, tuple(features.columns)))

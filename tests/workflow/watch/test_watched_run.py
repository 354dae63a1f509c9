from __future__ import annotations

from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.watch.watched_run import best_words

FC6, POOL5, CONV = (RankedLayer(LayerKey(name, "none"), "none", "cosine") for name in ("fc6", "pool5", "conv"))


def scored(split: str, *values: float) -> list[Score]:
    layers = zip((CONV, POOL5, FC6), values, strict=True)
    return [Subject("one", "e", 0, 1, split, ranked).score("R@1", value, 8) for ranked, value in layers]


def test_the_best_is_never_chosen_on_the_classes_of_the_training() -> None:
    scores = [*scored("train", 0.2, 0.3, 0.9), *scored("test", 0.3, 0.5, 0.4)]
    assert best_words(scores, "R@1", FC6) == "; best on test: pool5 50.0 %"
    assert (
        best_words([*scores, *scored("validation", 0.6, 0.5, 0.4)], "R@1", FC6) == "; best on validation: conv 60.0 %"
    )


def test_an_equal_best_is_called_a_tie() -> None:
    tied = scored("test", 0.4, 0.5, 0.5)
    assert best_words(tied, "R@1", CONV) == "; best on test: pool5 50.0 %, tied with 1 other"

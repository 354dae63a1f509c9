from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy import stats

from layerprobe.system.errors import EnvironmentFault, RecipeError
from layerprobe.workflow.study.search_space import Choices, Domain, OptunaSampler, RandomSampler, Range, draw
from layerprobe.workflow.study.study_file import load_study

FileOf = Callable[..., str]
DOMAINS: Mapping[str, Domain] = {
    "train.learning_rate": Range(1e-5, 1e-1, log=True),
    "net.fc": Choices(([8], [16], [32])),
}
SEARCH = '[search]\nbudgets = [1, 2]\n[search.keys]\n"loss.scale" = {low = 1.0, high = 8.0}\n[end]'
ONE_LAYER = ('layers = ["fc6", "pool5"]', 'layers = ["fc6"]')
ONE_SPLIT = ('seeded = ["data.class_seed"]', "")


def test_more_trials_begin_with_the_fewer() -> None:
    few, many = (RandomSampler(DOMAINS, 3, "margin") for _ in range(2))
    assert [few.ask() for _ in range(4)] == [many.ask() for _ in range(16)][:4]


def test_a_trial_depends_on_the_seed_the_method_its_number_and_the_key_alone() -> None:
    values = draw(DOMAINS, seed=3, method="margin", trial=2)
    other = {"loss.margin": Range(0.1, 1.0), **DOMAINS}
    assert draw(dict(reversed([*other.items()])), seed=3, method="margin", trial=2).items() >= values.items()
    further = [
        draw(DOMAINS, seed=4, method="margin", trial=2),
        draw(DOMAINS, seed=3, method="triplet", trial=2),
        draw(DOMAINS, seed=3, method="margin", trial=3),
    ]
    assert len({draws["train.learning_rate"] for draws in [values, *further]}) == 4


@pytest.mark.parametrize(
    ("domain", "quantiles", "values"),
    [
        (Range(0.0, 2.0), [0, 0.25, 0.5], [0, 0.5, 1]),
        (Range(1e-4, 1e-2, log=True), [0, 0.5], [1e-4, 1e-3]),  # the geometric mean
        (Range(1, 4), [0, 0.24, 0.25, 0.5, 0.75, 0.999], [1, 1, 2, 3, 4, 4]),
        (Range(1, 8, log=True), [0, 0.5, 0.999], [1, 3, 8]),  # the whole part of 9 ** q
        (Choices(("a", [1])), [0, 0.499, 0.5, 0.999], ["a", "a", [1], [1]]),
    ],
)
def test_a_domain_has_a_value_at_each_quantile(
    domain: Range | Choices, quantiles: list[float], values: list[object]
) -> None:
    assert [domain.at(q) for q in quantiles] == values


def test_a_number_has_three_digits_and_stays_in_its_range() -> None:
    assert Range(0.0, 1.0).at(0.123456) == 0.123
    assert (Range(1.2345, 1.2366).at(0.9999), Range(1.2345, 1.2366).at(0)) == (1.2366, 1.2345)


def test_draws_are_uniform_in_the_logarithm() -> None:
    values = [draw(DOMAINS, seed=0, method="", trial=t)["train.learning_rate"] for t in range(400)]
    assert stats.kstest(values, stats.loguniform(1e-5, 1e-1).cdf).pvalue > 0.05
    fc = [draw(DOMAINS, seed=0, method="", trial=t)["net.fc"][0] for t in range(300)]
    assert stats.chisquare(np.unique(fc, return_counts=True)[1]).pvalue > 0.05


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("low = 1.0", "low = 8.0", r'\[search\]: loss.scale = {"low": 8.0, "high": 8.0}: low is not below high'),
        ("low = 1.0", "log = true, low = 0", "low must be above 0 where log is true"),
        ("low = 1.0", "lo = 1.0", "unknown key 'lo'. Did you mean 'low'"),
        ("low = 1.0, ", "", "low is no finite number. Write {low ="),
        ("{low = 1.0, high = 8.0}", "3", "a range or a list is expected"),
        ("{low = 1.0, high = 8.0}", "[3]", "a list has two or more different values"),
        ("budgets = [1, 2]", "budgets = [0, 2]", r"budgets = \[0, 2\]: a budget has at least 1 trial"),
        ("budgets = [1, 2]", "budgets = [2, 2]", r"budgets = \[2, 2\]: not ascending"),
        ("budgets = [1, 2]", "", r"\[search\]: budgets is missing"),
        ("budgets = [1, 2]", 'budgets = [1]\nsampler = "grid"', 'sampler = "grid": input should be'),
        ("budgets = [1, 2]", "budgets = [1]\nvalidation_classes = 1.0", "validation_classes = 1.0: input should be"),
        ('"loss.scale"', '"data.class_seed"', r"data.class_seed decides which images there are. Put it into \[grid\]"),
        ('"loss.scale"', '"probe.k"', "probe.k decides no training. Known: net, loss, train"),
        ('"loss.scale"', '"train.seed"', "train.seed is no hyperparameter"),
        ('"loss.scale"', '"net.fc"', "net.fc is set by the file, too. Keep one"),
        ('"loss.scale" = {low = 1.0, high = 8.0}', "", r"no key is searched. Add \[search.keys\]"),
        ('"R@1"', '"effective-rank"', "a search maximises a share"),
        ('table = "R@1"', 'table = "R@1"\nepochs = [1]', "epochs: a search chooses them"),
        ('layers = ["fc6"]', 'layers = ["fc6", "pool5"]', "a search goes by one layer"),
        ("seeds = [0, 1]", 'seeds = [0, 1]\nseeded = ["data.class_seed"]', "would give each seed other classes"),
        ('"train.epochs" = 2', '"data.validation_folds" = 3', "data.validation_folds is set by validation_classes"),
    ],
)
def test_a_fault_of_a_search_is_named(file_of: FileOf, old: str, new: str, problem: str) -> None:
    file = file_of(ONE_LAYER, ONE_SPLIT, ("[end]", SEARCH), (old, new))
    with pytest.raises(RecipeError, match=problem):
        load_study(file)


def test_a_variant_that_is_searched_needs_a_search(file_of: FileOf) -> None:
    variants = '[[variants]]\nname = "A"\nsearch = {"loss.scale" = [1.0, 2.0]}\n[grid]'
    with pytest.raises(RecipeError, match=r"search is for a study with \[search\]. Add it"):
        load_study(file_of(("[grid]", variants)))


def test_the_keys_of_a_variant_stand_in_place_of_those_of_all(file_of: FileOf) -> None:
    variants = '[[variants]]\nname = "A"\nsearch = {"loss.scale" = [1.0, 2.0]}\n[[variants]]\nname = "B"\n[grid]'
    study = load_study(file_of(ONE_LAYER, ONE_SPLIT, ("[grid]", variants), ("[end]", SEARCH)))
    assert study.domains == {"A": {"loss.scale": Choices((1.0, 2.0))}, "B": {"loss.scale": Range(1.0, 8.0)}}


def test_optuna_that_is_not_installed_is_named_with_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(EnvironmentFault, match=r"optuna is not installed. pip install 'optuna>="):
        OptunaSampler(DOMAINS, 0, "A")


def test_optuna_suggests_the_same_after_the_same_values() -> None:
    pytest.importorskip("optuna")
    domains = {**DOMAINS, "train.epochs": Range(1, 9)}
    first, second = (OptunaSampler(domains, 0, "A") for _ in range(2))
    for trial in range(12):  # from the eleventh on they follow from the values
        values = first.ask()
        assert second.ask() == values
        assert 1e-5 <= values["train.learning_rate"] <= 1e-1
        assert values["net.fc"] in ([8], [16], [32])
        assert values["train.epochs"] in range(1, 10)
        first.tell(trial / 12)
        second.tell(trial / 12)

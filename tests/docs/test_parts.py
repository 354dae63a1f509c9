from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from docs._ext import parts
from layerprobe.registry import DATASETS, LOSSES, METRICS, NETS, PLOTS, POST_PROCESSING, SOURCES


@pytest.mark.parametrize(
    ("generate", "names"),
    [
        (parts.losses, LOSSES),
        (parts.metrics, METRICS),
        (parts.post_processing, [name.rstrip(":") for name in POST_PROCESSING]),
        (parts.data_sets, DATASETS),
        (parts.networks, [*NETS, *(name.rstrip(":") for name in SOURCES)]),
        (parts.plots, PLOTS),
    ],
)
def test_every_registered_name_has_a_heading(generate: Callable[[], str], names: Iterable[str]) -> None:
    headings = [line.lstrip("# ") for line in generate().splitlines() if line.startswith("##")]
    found = {name for heading in headings for name in heading.split(", ")}
    assert [name for name in names if name not in found] == []


def test_a_loss_has_its_batches_and_the_meaning_of_its_options() -> None:
    text = parts.losses()
    assert "| [`margin`](#margin) | Sum of " in text
    assert "| classes, 5 images a class |" in text
    assert "(loss.supcon.temperature)=\n\n`temperature` (number; default `0.1`)\n: tau, above 0" in text
    assert "embedding_dim" not in text


def test_a_data_set_has_its_usage_sizes_and_options() -> None:
    section = parts.data_sets().partition("## cub200\n")[2].partition("\n## ")[0]
    assert "--data cub200:ROOT" in section
    assert "| train | 5,864 images of 100 classes (41-60 each) |" in section
    assert '`protocol` (`"retrieval"` or `"classification"`; default `"retrieval"`)' in section


def test_metrics_of_one_class_share_a_section_with_their_keys() -> None:
    text = parts.metrics()
    assert "## NMI, AMI\n" in text
    assert "`restarts` (whole number; default `10`)" in text


def test_the_options_of_networks_are_keys_that_the_sections_lack() -> None:
    text = parts.networks()
    assert "`freeze_bn` (`true` or `false`; default `false`)\n: keep the trunk's batch normalisation" in text
    assert "(net.fc)=" not in text


def test_a_plot_says_what_it_shows() -> None:
    text = parts.plots()
    assert "Test recall against training recall" in text[text.index("## train-vs-test") : text.index("## curves")]


def test_a_plot_names_its_options() -> None:
    section = parts.plots().partition("## dims\n")[2].partition("\n## ")[0]
    assert "Options: `--layers`, `--epoch`, `--metric`, `--by`." in section

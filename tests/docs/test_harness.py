"""What the tests of the pages refuse: changed outputs, options and names that are not there."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from layerprobe.system.errors import LayerprobeError
from tests.docs.pages import Block, Command, blocks_of, commands_of, differences
from tests.docs.resolving import resolve
from tests.docs.test_pages import leads_somewhere, run_python_block, stated_value

PRINTED = "netA: fc6 46.3 % [43.1, 49.5]\n  of 60 classes (4.1 s)\nnext: layerprobe export netA-0a1b2c\n"


@pytest.mark.parametrize(
    "shown",
    [
        ("netA: fc6 46.3 % [43.1, 49.5] of 60 classes (0.2 s)", "next: layerprobe export netA-ffffff"),
        ("netA: fc6 46.3 % [43.1, 49.5]", "..."),
        ("...", "of 60 classes (9 s)", "..."),
        ("netA: fc6", "...", "next: layerprobe export netA-ffffff"),
    ],
)
def test_an_output_may_be_wrapped_elided_and_of_another_machine(shown: tuple[str, ...]) -> None:
    assert differences(shown, PRINTED) == ""


@pytest.mark.parametrize(
    "shown",
    [
        ("netA: fc6 46.4 % [43.1, 49.5]", "..."),  # another number
        ("fc6 46.3 % [43.1, 49.5]", "..."),  # the first word is left out without a line `...`
        ("netA: fc6 46.3 % [43.1, 49.5]",),  # the end is
        ("...", "of 61 classes (4.1 s)", "..."),
        ("...", "next: layerprobe export"),
        ("...", "next: layerprobe", "...", "netA: fc6", "..."),  # in another order
    ],
)
def test_another_output_is_a_difference(shown: tuple[str, ...]) -> None:
    assert differences(shown, PRINTED) != ""


def test_times_of_search_indexes_are_of_the_machine_and_their_recall_is_not() -> None:
    row = "ivfpq   59.7   -7.83       62.0    239     0.033        0.030      0.8"
    printed = "ivfpq   59.7   -7.83       62.0    239     1.070        0.002     11.0   \n"
    assert differences((row,), printed) == ""
    assert differences((row.replace("62.0", "61.0"),), printed) != ""
    assert differences((row.replace("239", "240"),), printed) != ""


def test_a_page_has_commands_with_their_outputs_and_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n\n```console\n$ layerprobe runs \\\n    --json\n{}\n...\n$ ls\n```\n\n"
        "<!-- parsed: needs CUB-200 -->\n```sh\n# all\nlayerprobe compare a#0:fc6 b   # every one\n```\n"
    )
    console, sh = blocks_of(page)
    assert commands_of(console) == [Command("layerprobe runs --json", ("{}", "...")), Command("ls", ())]
    assert (sh.line, sh.mark, sh.reason) == (12, "parsed", "needs CUB-200")
    assert [command.words for command in commands_of(sh)] == [["layerprobe", "compare", "a#0:fc6", "b"]]


@pytest.mark.parametrize(
    "line",
    [
        "layerprobe train netA-cub200 --data cub200:DIR --set train.epochs=3 --log tensorboard:runs",
        "layerprobe probe --model timm:resnet50 --data folder:DIR --metrics MAP@R --set data.image_size=96",
        "layerprobe choose --model timm:NAME --data 'wds:DIR/{0000..1999}.tar'",
        "layerprobe plot train-vs-test RUN RUN --out x.pdf",
        "layerprobe study dimension --jobs 4",
        "layerprobe compare RUN --paper vo-hays-2019:table3",
        "torchrun --nproc-per-node 2 -m layerprobe train netA",
        "pip install 'layerprobe[timm,hf]'",
    ],
)
def test_a_command_of_names_that_there_are_is_accepted(line: str) -> None:
    resolve(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("layerprobe train netZ", "unknown recipe 'netZ'"),
        ("layerprobe train netA --set loss.name=trplet", "trplet"),
        ("layerprobe train netA --set train.epoch=3", "epoch"),
        ("layerprobe train netA --data cub:DIR", "cub"),
        ("layerprobe train netA --log tensorbord", "tensorbord"),
        ("layerprobe probe --model tim:resnet50 --data folder:DIR", "tim"),
        ("layerprobe probe --model timm:resnet5 --data folder:DIR", "resnet5"),
        ("layerprobe probe RUN --metrics MAPR", "MAPR"),
        ("layerprobe choose --model timm:resnet50 --data foldr:DIR", "foldr"),
        ("layerprobe plot train-vs-tests", "train-vs-tests"),
        ("layerprobe study dimensions", "dimensions"),
        ("layerprobe compare RUN --paper vo-hays-2019:table33", "table33"),
    ],
)
def test_a_command_of_a_name_that_is_not_there_is_refused(line: str, message: str) -> None:
    with pytest.raises(LayerprobeError, match=message):
        resolve(shlex.split(line))


@pytest.mark.parametrize(
    ("line", "message"),
    [("summary --metrik MAP@R", "metrik"), ("sumary", "sumary"), ("export --epoch x", "valid integer")],
)
def test_an_option_or_command_that_is_not_there_is_refused(line: str, message: str) -> None:
    with pytest.raises(Exception, match=message):
        resolve(shlex.split(f"layerprobe {line}"))


@pytest.mark.parametrize("line", ["pipp install x", "pip install 'layerprobe[tim]'"])
def test_other_programs_and_extras_are_those_that_there_are(line: str) -> None:
    with pytest.raises(AssertionError, match="no program|no such extra"):
        resolve(shlex.split(line))


def test_a_value_in_a_comment_is_that_of_the_expression() -> None:
    run_python_block(Block(Path(__file__), 1, "python", "x = 1\nx + 1  # 2, as it is\n"), {})
    assert stated_value("  # (N, 10), without the query") is None
    with pytest.raises(AssertionError):
        run_python_block(Block(Path(__file__), 1, "python", "1 + 1  # {1: 3}\n"), {})


def test_a_link_leads_to_a_heading(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n## What `choose` decides, and why\n\n(by-hand)=\n```\n# no heading\n```\n")
    assert leads_somewhere("page.md#what-choose-decides-and-why", page)
    assert leads_somewhere("#by-hand", page)
    assert not leads_somewhere("page.md#no-heading", page)
    assert not leads_somewhere("pages.md", page)

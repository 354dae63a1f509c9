"""The tables equal the papers' texts, which lie outside the project: cell for cell where they are present."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from layerprobe.papers.tables import PaperTable, find_table, paper_names, read_tables
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import RecipeError, UnknownNameError

TEXTS = Path(os.environ.get("LAYERPROBE_TEST_PAPERS", "../shared/papers"))
FIRST_WORDS = {
    "zhai-wu-2019": "Making Classification Competitive",
    "horiguchi-2019": "Significance of Softmax-based Features",
    "fehervari-2019": "Unbiased Evaluation",
    "zhang-2018": "HEATED-UP SOFTMAX",
    "vo-hays-2019": "# Generalization in Metric Learning",
}
TABLES = [f"{paper}:{name}" for paper in paper_names() for name in read_tables(paper)]
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")

Grid = list[list[str]]


def text_of(paper: str) -> list[str]:
    """The lines of a paper's text, or a skip where it is absent."""
    for path in sorted(TEXTS.glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        if text.lstrip().startswith(FIRST_WORDS[paper]):
            return text.splitlines()
    pytest.skip(f"the text of {paper} is not in {TEXTS}, and LAYERPROBE_TEST_PAPERS names no other folder")


def grid(paper: str, caption: str, *, above: bool = False) -> Grid:
    """The cells of the lines with tabs nearest to a caption, below it or above."""
    lines = [*text_of(paper), ""]
    start = next(i for i, line in enumerate(lines) if line.startswith(caption))
    step, at = (-1, start - 1) if above else (1, start + 1)
    found: Grid = []
    while "\t" in lines[at] or not found:
        row = [re.sub(r"</?[bu]>", "", cell).strip() for cell in lines[at].split("\t")]
        found += [row] if any(row[1:]) else []
        at += step
    return found[::-1] if above else found


def cells(table: PaperTable) -> Grid:
    return [[cell.text for cell in row.cells] for row in table.rows]


def method(printed: str) -> tuple[str, str]:
    """A method's name without its reference, and the dimensions written above the line."""
    name = re.sub(r" ?\[\d+\]$|\*+(?= \[)", "", printed.strip("†"))
    match = re.fullmatch(r"(.*?) ?([⁰¹²³⁴⁵⁶⁷⁸⁹]+|\^\{2048bits\})?", name)
    assert match
    return match[1].replace("*", "").strip(), (match[2] or "").translate(SUPERSCRIPTS).replace(
        "^{2048bits}", "2048 bits"
    )


def columns(of: Grid) -> Grid:
    return [list(column) for column in zip(*of, strict=True)]


@pytest.mark.parametrize("reference", TABLES)
def test_every_row_has_a_cell_for_each_column(reference: str) -> None:
    table = find_table(reference)
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
    assert all(re.fullmatch(r"-|N/A|yes|no|\d+(\.\d+)?[*†]?", cell) for row in cells(table) for cell in row)


@pytest.mark.parametrize("reference", TABLES)
def test_a_doubtful_cell_has_its_reason(reference: str) -> None:
    for row in find_table(reference).rows:
        assert any(cell.doubtful for cell in (row.dim, *row.cells)) == bool(row.error)


def test_the_known_errors_of_the_papers_are_marked() -> None:
    found = {
        (reference, row.method, cell.text)
        for reference in TABLES
        for row in find_table(reference).rows
        for cell in (row.dim, *row.cells)
        if cell.doubtful
    }
    # docs/papers/deviations.md, "Numbers that are no targets", says why.
    assert found == {
        ("vo-hays-2019:table2", "Lifted structure", "64/64/512"),
        ("fehervari-2019:table1", "Proxy-Softmax", "55.3"),
        ("fehervari-2019:table4", "N-Pairs", "67.31"),
        ("fehervari-2019:table4", "Proxy-Softmax", "82.41"),
        ("zhang-2018:table1", "Structured clustering", "54.44"),
        ("zhang-2018:table2", "HDC", "91.2"),
        ("zhang-2018:table2", "HDC", "92.3"),
    }


@pytest.mark.parametrize("reference", [name for name in TABLES if name != "fehervari-2019:table1"])
def test_the_recipe_of_a_row_can_be_trained_on_each_data_set(reference: str) -> None:
    table = find_table(reference)
    own = [row for row in table.rows if row.recipe]
    assert own
    for data in table.data:
        for name, settings in dict.fromkeys((row.recipe_on(data), row.settings) for row in own):
            assert load_recipe(name, Overrides(settings=("data.root=.", *settings))).data.name == data


@pytest.mark.parametrize("reference", TABLES)
def test_a_row_has_the_dimensions_that_its_recipe_trains(reference: str) -> None:
    table = find_table(reference)
    for row in (row for row in table.rows if row.recipe and row.post_processing == "none"):
        recipe = load_recipe(row.recipe_on(table.data[0]), Overrides(settings=("data.root=.", *row.settings)))
        members = recipe.ensemble.members if recipe.ensemble else 1
        if recipe.net.fc and row.layer != "pool5":  # the pooled layer's dimension is not in the recipe
            assert row.dim.text == str(members * recipe.net.fc[-1]), row.method


def test_the_released_lifted_structure_models_are_trained_anew() -> None:
    rows = [row for row in find_table("vo-hays-2019:table3").rows if row.method.startswith("Lifted")]
    assert len(rows) == 8  # four sizes, output and penultimate
    for row in rows:
        recipe = load_recipe(row.recipe_on("sop"), Overrides(settings=("data.root=.", *row.settings)))
        size = int(row.method.removeprefix("Lifted-").split()[0])
        assert (recipe.loss.name, recipe.net.name, recipe.net.fc) == ("lifted_structure", "googlenet_caffe", (size,))
        assert row.layer == {"512": "fc6", "1024": "pool5"}.get(row.dim.text, "fc6")


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'vo-hays-2019'"):
        find_table("vo-hays-2018:table3")
    with pytest.raises(RecipeError, match=r"unknown table 'table4'.*vo-hays-2019:table2 \(R@1 compared to previous"):
        find_table("vo-hays-2019:table4")
    with pytest.raises(RecipeError, match=r"which table\? Choose one of vo-hays-2019:table1 \(R@K of"):
        find_table("vo-hays-2019")


def labels(table: PaperTable) -> list[tuple[str, str]]:
    return [(row.method, row.dim.text) for row in table.rows]


def test_vo_and_hays_table_1() -> None:
    lines = text_of("vo-hays-2019")
    (printed,) = [line.split("\t")[1:] for line in lines if line.startswith("NetA:pool5.3\t")]
    assert cells(find_table("vo-hays-2019:table1")) == [printed]


def test_vo_and_hays_table_2() -> None:
    table = find_table("vo-hays-2019:table2")
    printed = [row for row in grid("vo-hays-2019", "Table 2. R@1")[1:] if row[0] != "Ours"]
    assert cells(table) == [row[3:] for row in printed]
    assert [row.dim.text for row in table.rows] == [row[2] for row in printed]
    for row, (name, network, *_) in zip(table.rows[:9], printed, strict=False):
        assert (row.method, row.network) == (method(name)[0], network)
    # The networks of the paper's own rows are above them, and their layers where the others have networks.
    assert [row.method.partition(" ")[2] for row in table.rows[9:]] == [row[1][2:] for row in printed[9:]]


def test_vo_and_hays_table_3() -> None:
    table = find_table("vo-hays-2019:table3")
    printed = grid("vo-hays-2019", "Table 3. R@1")[2:]
    assert cells(table) == [row[2:] for row in printed]
    assert [row.dim.text.strip("-") for row in table.rows] == [row[1] for row in printed]
    names = [row[0].replace("model-", "") for row in printed]
    assert all(set(re.findall(r"[a-z]+\d?|\d+", name)) <= set(re.findall(r"[a-z]+\d?|\d+", row.method))
               for name, row in zip(names, table.rows, strict=True))  # fmt: skip


@pytest.mark.parametrize(("number", "network"), [(1, "GoogleNet"), (2, "BNInception"), (3, "ResNet50")])
def test_zhai_and_wu_tables_1_to_3(number: int, network: str) -> None:
    table = find_table(f"zhai-wu-2019:table{number}")
    printed = grid("zhai-wu-2019", f"Table {number}. Recall@K", above=True)[2:]
    assert cells(table) == [row[1:] for row in printed]
    assert labels(table) == [method(row[0]) for row in printed]
    assert {row.network for row in table.rows} == {network}


def test_zhai_and_wu_tables_4_and_5() -> None:
    samples, distinct, recall = grid("zhai-wu-2019", "Table 4. ResNet50", above=True)
    assert cells(find_table("zhai-wu-2019:table4")) == columns([distinct[1:], recall[1:]])
    words = [row.method.partition(" ")[0].replace("no", "-") for row in find_table("zhai-wu-2019:table4").rows]
    assert words == samples[1:]
    temperatures, recall = grid("zhai-wu-2019", "Table 5. ResNet50", above=True)
    table = find_table("zhai-wu-2019:table5")
    assert [(row.method, row.cells[0].text) for row in table.rows] == [
        (f"temperature {one}", value) for one, value in zip(temperatures[1:], recall[1:], strict=True)
    ]


@pytest.mark.parametrize("number", [6, 7])
def test_zhai_and_wu_tables_6_and_7(number: int) -> None:
    table = find_table(f"zhai-wu-2019:table{number}")
    printed = grid("zhai-wu-2019", f"Table {number}. Recall@K", above=True)[2:]
    assert cells(table) == [row[2:] for row in printed]
    assert labels(table) == [method(row[0]) for row in printed]
    assert [row.network for row in table.rows] == [row[1] for row in printed]


@pytest.mark.parametrize("number", [2, 3, 4])
def test_horiguchi_tables_2_to_4(number: int) -> None:
    table = find_table(f"horiguchi-2019:table{number}")
    printed = grid("horiguchi-2019", f"TABLE {number}")[2:]
    assert cells(table) == [[cell.strip("()") for cell in row[2:]] for row in printed]
    assert [row.dim.text for row in table.rows] == [row[1] for row in printed]
    names = [method(row[0])[0] for row in printed]
    assert [row.method for row in table.rows] == [names[0], f"{names[0]}, own run", *names[2:]]


@pytest.mark.parametrize("number", [5, 6])
def test_horiguchi_tables_5_and_6(number: int) -> None:
    table = find_table(f"horiguchi-2019:table{number}")
    _, dims, *printed = grid("horiguchi-2019", f"TABLE {number}")
    wanted = [(row[0], dim, value) for row in printed for dim, value in zip(dims[1:], row[1:], strict=True)]
    assert [(row.method, row.dim.text, row.cells[0].text) for row in table.rows] == wanted


def test_fehervari_table_1() -> None:
    table = find_table("fehervari-2019:table1")
    printed = grid("fehervari-2019", "Table 1. Reported", above=True)[1:]
    marks = {"✗": "no", "✓": "yes"}
    assert cells(table) == [[row[3], marks[row[4]]] for row in printed]
    assert [(row.method, row.network, row.dim.text) for row in table.rows] == [
        (method(row[0])[0], row[1], row[2].replace(" [†]", "†")) for row in printed
    ]


def test_fehervari_table_2() -> None:
    table = find_table("fehervari-2019:table2")
    printed = grid("fehervari-2019", "Table 2. Recall", above=True)[1:]
    pairs = [[cell.split(" — ") for cell in row[1:]] for row in printed]
    assert cells(table) == [[pair[which] for pair in row] for row in pairs for which in (0, 1)]
    assert [row.method for row in table.rows] == [name for row in printed for name in [row[0].strip("†")] * 2]
    networks = ["Inception-BN", "ResNet50"] * (len(printed) - 1) + ["Inception-BN", "ResNet18"]
    assert [row.network for row in table.rows] == networks


@pytest.mark.parametrize("number", [2, 3, 4])
def test_fehervari_tables_2_to_4_have_the_dimensions_of_section_4_1(number: int) -> None:
    (section,) = (line for line in text_of("fehervari-2019") if line.startswith("We used MXNet"))
    size = re.findall(r"embedding size (?:at|of) (\d+)", section)
    assert len(size) == 3
    dims = {"Proxy-Softmax": f"{size[1]} bits", "DREML": size[2]}
    rows = find_table(f"fehervari-2019:table{number}").rows
    assert [row.dim.text for row in rows] == [dims.get(row.method, size[0]) for row in rows]


@pytest.mark.parametrize("number", [3, 4])
def test_fehervari_tables_3_and_4(number: int) -> None:
    table = find_table(f"fehervari-2019:table{number}")
    printed = grid("fehervari-2019", f"Table {number}. Recall", above=True)[1:]
    assert cells(table) == [row[1:] for row in printed]
    assert [row.method for row in table.rows] == [row[0] for row in printed]


@pytest.mark.parametrize(("number", "caption"), [(1, "Table 1: NMI"), (2, "Table 2: Recall")])
def test_zhang_tables_1_and_2(number: int, caption: str) -> None:
    table = find_table(f"zhang-2018:table{number}")
    head, *printed = grid("zhang-2018", caption)
    assert cells(table) == columns([row[1:] for row in printed])
    assert [row.method for row in table.rows if row.recipe] == [name for name in head[1:] if not name.startswith("[")]
    assert [column.metric for column in table.columns] == [row[0] for row in printed]
    lines = [line for line in text_of("zhang-2018") if line.endswith("DATASET") or "DATASET\t" in line]
    names = {"CAR196": "cars196", "CUB200": "cub200", "STANFORD": "sop"}
    assert number == 2 or list(table.data) == [names[line.split()[0]] for line in lines]


def test_zhang_table_3() -> None:
    head, models, *printed = grid("zhang-2018", "Table 3: R@1")
    alphas = re.findall(r"alpha = (\d+)", " ".join(models))
    names = ["SM", *(f"BN, alpha {alpha}" for alpha in alphas), "HBN (16 -> 4)"]
    wanted = [(name, row[0], value) for row in printed for name, value in zip(names, row[1:], strict=False)]
    table = find_table("zhang-2018:table3")
    assert [(row.method, row.dim.text, row.cells[0].text) for row in table.rows] == wanted
    assert head[-1].startswith("HBN (16")


def test_zhang_table_4() -> None:
    head, *printed = grid("zhang-2018", "Table 4: Fine")
    table = find_table("zhang-2018:table4")
    assert cells(table) == columns([row[1:] for row in printed])
    assert [row.method for row in table.rows] == head[1:]


def test_zhang_table_5() -> None:
    _, _, *printed = grid("zhang-2018", "Table 5: NMI")
    table = find_table("zhang-2018:table5")
    assert cells(table) == [half for row in printed for half in (row[2:5], row[5:8])]
    initial = [row[1] for row in printed if row[1] != "N/A"][:-1]
    assert [row.method for row in table.rows[:12:2]] == [f"learned alpha from {alpha}" for alpha in initial]


def test_zhang_table_6() -> None:
    _, alphas, *printed = grid("zhang-2018", "Table 6: NMI")
    table = find_table("zhang-2018:table6")
    assert cells(table) == columns([row[1:] for row in printed])
    found: Sequence[str] = [row.method.rpartition(" ")[2] for row in table.rows[1:]]
    assert found == re.findall(r"alpha = (\d+)", " ".join(alphas))


def test_zhang_table_7() -> None:
    alphas, *printed = grid("zhang-2018", "Table 7: Final")
    table = find_table("zhang-2018:table7")
    assert cells(table) == columns([row[1:] for row in printed])
    assert [row.method.rpartition(" ")[2] for row in table.rows] == re.findall(r"alpha = (\d+)", " ".join(alphas))

from __future__ import annotations

from dataclasses import replace

from layerprobe.summary.cells import Faults
from layerprobe.summary.layers import LayerSummary, Level
from layerprobe.summary.post_processed import BestProcessing, PostProcessedSection, ProcessedLayer, Processing
from layerprobe.summary.table import summary_tables, summary_values
from layerprobe.tables.formats import as_csv, as_latex, as_markdown
from layerprobe.values.intervals import Difference, Interval
from tests.summary.made_up import FC6, POOL5
from tests.summary.test_table import LAYER, OTHER, SUMMARY

RAW, PCA = Processing("none", "cosine"), Processing("pca:8", "cosine", 8)
RANDOM = Processing("random:8x5", "cosine", 8, draws=5)
POOL5_PCA, FC6_PCA = PCA.of(POOL5.layer), PCA.of(FC6.layer)
VALUES = {POOL5: 0.7, POOL5_PCA: 0.6, FC6: 0.65, FC6_PCA: 0.62}
ENDS = {POOL5: Interval(0.66, 0.74)}
ALIKE = {RAW: (), PCA: (POOL5.layer,)}
SECTION = PostProcessedSection(8, 9, "test", (POOL5.layer, FC6.layer), (RAW, PCA), {"test": VALUES}, ENDS, ALIKE)
POST_PROCESSED = LayerSummary(FC6_PCA, {"test": Level(9, 0.62)}, None, None, None, {"test": 9}, 1, {}, {})
PROCESSED = BestProcessing(
    "validation",
    9,
    (
        ProcessedLayer(POOL5, 0.8, 0.7, Interval(0.66, 0.74), Difference(0.0)),
        ProcessedLayer(FC6_PCA, 0.75, 0.62, None, Difference(-0.03, -0.06, -0.01, 0.01)),
    ),
    (FC6.layer,),
    ("a note",),
)
WHOLE = replace(SUMMARY, layers=(LAYER, OTHER, POST_PROCESSED), sections=(SECTION,), processed=PROCESSED)


def test_the_first_table_has_the_layers_as_they_are() -> None:
    first, *_ = summary_tables(WHOLE)
    assert [row[1] for row in first.rows] == ["pool5@max", "fc6"]
    assert "post_processing" not in first.columns


def test_post_processing_of_one_dimension_stand_beside_each_other_and_the_layers_as_they_are() -> None:
    _, table, _ = summary_tables(WHOLE)
    assert table.columns == ("layer", "raw", "pca:8")
    assert table.rows == (("pool5@max", "70.0", "60.0"), ("fc6", "65.0", "62.0"))
    assert table.intervals == {1: (("66.0", "74.0"), None)}
    assert table.heading[0] == "equal dimension 8 of one, epoch 9, test R@1 in %, cosine"


def test_the_best_layer_of_each_post_processing_is_named() -> None:
    _, table, _ = summary_tables(WHOLE)
    assert "pca:8: best on test (chosen on test): fc6, 62.0 %; not significantly different: pool5@max" in table.notes


def test_what_a_column_is_the_mean_of_and_fitted_on_is_told() -> None:
    gallery = Processing("pca:8@gallery", "cosine", 8, on_gallery=True)
    processings = (RAW, RANDOM, gallery)
    _, table, _ = summary_tables(
        replace(
            WHOLE, sections=(replace(SECTION, processings=processings, indistinguishable=dict.fromkeys(processings)),)
        )
    )
    assert "random:8x5: mean of 5 draws" in table.notes
    assert "transductive, fitted on the images searched: pca:8@gallery" in table.notes


def test_a_layer_without_a_value_after_post_processing_is_told_there() -> None:
    faulty = replace(POST_PROCESSED, faults={"test": Faults(invalid="NaN (3 rows)", lone=5)})
    first, table, _ = summary_tables(replace(WHOLE, layers=(LAYER, OTHER, faulty)))
    assert "test, fc6 after pca:8: NaN (3 rows)" in table.notes
    assert not any("NaN" in note for note in first.notes)


def test_layers_with_one_fault_after_post_processing_are_told_together() -> None:
    faulty = replace(POST_PROCESSED, faults={"test": Faults(tied=0.8)})
    _, table, _ = summary_tables(replace(WHOLE, layers=(LAYER, replace(faulty, ranked=POOL5_PCA), faulty)))
    assert [note for note in table.notes if "tied" in note] == ["test, pool5@max, fc6 after pca:8: collapsed: 80% tied"]


def test_post_processing_shows_what_was_chosen_where_and_what_it_gives_on_test() -> None:
    *_, table = summary_tables(WHOLE)
    assert table.columns == ("", "layer", "validation\nR@1", "test\nR@1", "gain\ntest")
    assert table.rows == (
        ("*", "pool5@max", "80.0", "70.0", "+0.0"),
        ("", "fc6/pca:8", "75.0", "62.0", "-3.0"),
    )
    assert table.intervals == {3: (("66.0", "74.0"), None), 4: (None, ("-6.0", "-1.0"))}
    assert (
        table.notes[0] == "* best on validation: pool5@max, 80.0 %; on test 70.0 %; "
        "not significantly different on validation: fc6/pca:8"
    )
    assert table.notes[-1] == "a note"


def test_why_no_post_processing_can_be_chosen_is_told_last() -> None:
    tables = summary_tables(replace(WHOLE, processed=BestProcessing(notes=("none can be chosen",))))
    assert len(tables) == 2
    assert tables[-1].notes[-1] == "none can be chosen"


def test_json_has_the_post_processings() -> None:
    values = summary_values(WHOLE)
    assert [layer["post_processing"] for layer in values["layers"]] == ["none", "none", "pca:8"]
    (section,) = values["post_processed"]
    assert section["post_processings"][1] == {
        "post_processing": "pca:8",
        "similarity": "cosine",
        "best": {"split": "test", "layer": "fc6", "pool": "none"},
        "not_told_apart": [{"layer": "pool5", "pool": "max"}],
    }
    assert values["post_processing"]["chosen_on"] == "validation"
    assert values["post_processing"]["layers"][1]["gain"] == {"value": -0.03, "low": -0.06, "high": -0.01}


def test_every_format_writes_the_sections() -> None:
    _, table, chosen = summary_tables(WHOLE)
    assert "| pool5@max | 70.0 \\[66.0, 74.0] | 60.0 |" in as_markdown(table)
    assert "fc6 & 65.0 & 62.0 \\\\" in as_latex(table)
    assert as_csv(chosen).splitlines()[2] == ",fc6/pca:8,75.0,62.0,,,-3.0,-6.0,-1.0"

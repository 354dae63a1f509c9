from __future__ import annotations

import contextlib
import html.parser
import json
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.report.values import RunPage
from layerprobe.system.errors import DataError, InterruptedRun
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.workflow.report import report as module
from layerprobe.workflow.report.report import build_report, is_training, watch_report, write_report
from layerprobe.workflow.report.report_gallery import Galleries
from layerprobe.workflow.report.request import ReportRequest
from layerprobe.workflow.run.runs import Run, locked
from tests.records import rewrite
from tests.scores import with_layer
from tests.workflow.conftest import Silent
from tests.workflow.rank_files import FC6, POOL5, first_hit, stored, written


def run_of(cache: Path, name: str = "one", **record: object) -> Run:
    run = Run(cache / name)
    test = stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)})
    train = stored(run, 5, "train", {POOL5: first_hit(12), FC6: first_hit(9)})
    written(run, train, test, layer_order=["pool5", "fc6"], **record)
    return run


def add(run: Run, scores: Sequence[Score]) -> None:
    table = ScoreTable(run.scores())
    table.add(scores)
    table.write(run.scores_file)


class Parts(html.parser.HTMLParser):
    """The text of the page's JSON, and the addresses in its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside, self.json, self.addresses = False, "", list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "script" and dict(attributes).get("type") == "application/json"
        self.addresses += [value or "" for name, value in attributes if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.json += data if self.inside else ""


def test_a_report_has_the_explanation_that_its_run_keeps(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert build_report([run]).runs[0].explanation is None
    run.plot_file("explain").parent.mkdir()
    run.plot_file("explain").write_bytes(b"a figure")
    assert build_report([run]).runs[0].explanation == b"a figure"


def test_a_report_has_the_scores_finding_and_layers_of_its_run(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    made = build_report([run])
    (page,) = made.runs
    assert page.scores == tuple(run.scores())
    assert (page.layers, page.embedding, page.few) == ((POOL5, FC6), 1, (0, 1))
    assert page.data.splits["test"].queries == 24
    assert "pool5@max, the layer before the embedding," in made.findings[0]
    assert made.title == "one: train and test recall of every layer"
    assert not page.training


def test_the_embedding_of_a_foreign_network_with_a_head_is_the_end_of_the_head(foreign: Callable[..., Run]) -> None:
    run = foreign("net.fc=[4]")
    made = build_report([run])
    (page,) = made.runs
    assert page.embedding is not None
    assert page.layers[page.embedding].layer.layer == "fc6"
    assert any(
        text.startswith("output, the layer before the embedding, against the embedding fc6 on")
        for text in made.findings
    )


def test_a_module_that_gives_the_output_is_the_embedding_and_never_compared_with_it(
    foreign: Callable[..., Run],
) -> None:
    made = build_report([foreign("net.fc=[]")])
    (page,) = made.runs
    assert [ranked.layer.layer for ranked in page.layers] == ["stages.1", "stages.2", "head", "output"]
    assert [page.layers[i].layer.layer for i in page.few] == ["stages.1", "output"]
    assert made.findings[-1].startswith(
        "stages.1@avg, the last layer probed that differs from the embedding, against the embedding"
    )


def test_the_file_holds_the_digits_of_scores_csv_and_asks_for_nothing(tmp_path: Path) -> None:
    run, out = run_of(tmp_path), tmp_path / "new" / "page.html"
    write_report(ReportRequest([run], out))
    parts = Parts(out.read_text(encoding="utf-8"))
    (page,) = json.loads(parts.json, parse_float=str)["runs"]
    written_ = {
        (split, layer["layer"], str(epoch), str(table["value"][i][j]))
        for split, table in page["scores"]["R@1"].items()
        for i, layer in enumerate(page["layers"])
        for j, epoch in enumerate(page["epochs"])
    }
    rows = [line.split(",") for line in run.scores_file.read_text().splitlines()[1:]]
    assert written_ == {(row[4], row[5], row[3], row[10]) for row in rows}
    assert parts.addresses == []


def test_nothing_of_the_run_is_changed_and_no_lock_is_made(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    before = {path: path.read_bytes() for path in sorted(run.folder.rglob("*")) if path.is_file()}
    write_report(ReportRequest([run], tmp_path / "page.html"))
    assert before == {path: path.read_bytes() for path in sorted(run.folder.rglob("*")) if path.is_file()}


def test_a_run_that_is_named_twice_is_there_once(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    assert [page.name for page in build_report([run, Run(run.folder)]).runs] == ["one"]


def test_runs_of_one_recipe_on_other_images_are_told(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, f"s{seed}", seed=seed, contents={"test": str(seed)}) for seed in (0, 1)]
    note = "s0 and s1 have one recipe, but other test images: no seeds of one experiment"
    assert note in build_report(runs).notes


def test_many_runs_are_not_all_in_the_title(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, name) for name in "abcd"]
    assert build_report(runs).title.startswith("a, b, c and 1 more runs: ")


def test_a_run_without_scores_says_how_to_have_some(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    header = run.scores_file.read_text().splitlines()[0]
    run.scores_file.write_text(f"{header}\n")
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe .*first"):
        build_report([run])
    run.scores_file.unlink()
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe .*first"):
        build_report([run])


def test_a_damaged_record_leaves_the_scores_on_the_page(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.record_file.write_text("no JSON")
    made = build_report([run])
    assert made.runs[0].scores == tuple(run.scores())
    assert made.findings == ()
    assert any("not JSON" in note for note in made.notes)


def test_a_missing_embedding_is_told_among_the_notes(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    rewrite(run, network=None)
    made = build_report([run])
    assert made.runs[0].embedding is None
    assert any(note.startswith("one: no finding: it is not known which layer is the embedding") for note in made.notes)


def test_how_a_run_was_made_begins_with_its_best_layer_on_validation(tmp_path: Path) -> None:
    run = run_of(tmp_path, "a")
    add(run, [replace(score, split="validation") for score in run.scores() if score.split == "train"])
    text = "a, epoch 5: best on validation: pool5@max, 50.0 %; on test 37.5 %."
    assert build_report([run]).runs[0].made[0] == ("best layer", text)


def test_a_post_processed_layer_is_not_among_the_few_for_being_best_on_validation(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (first, *_) = run.scores()
    middle = [replace(with_layer(first, layer=f"pool5.{i}"), split="validation", value=0.1 * i) for i in range(1, 6)]
    add(
        run,
        [
            *middle,
            replace(with_layer(middle[0], layer="pool5.2", post_processing="l2+pca:8"), value=0.9),
        ],
    )
    (page,) = build_report([run]).runs
    assert all(page.layers[place].post_processing == "none" for place in page.few)


def test_title_and_finding_call_train_selection_classes_where_no_network_has_seen_it(tmp_path: Path) -> None:
    recipe = {"data": {"name": "glyphs", "seen": False}, "net": {"weights": "a_5.pt"}, "train": {"epochs": 0}}
    run = run_of(
        tmp_path, recipe=recipe, weights_files=[{"path": "a_5.pt", "sha256": "0", "size": 1, "part": None, "epoch": 5}]
    )
    made = build_report([run])
    assert made.title == "one: selection and test recall of every layer"
    assert "On the selection classes they reach 50.0 % against 37.5 %." in made.findings[-1]
    both = build_report([run, run_of(tmp_path, "two")])
    assert both.title == "one, two: selection, train and test recall of every layer"


def test_galleries_and_why_there_are_none_are_on_the_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def galleries_of(runs: Sequence[tuple[Run, RunPage]]) -> Galleries:
        return Galleries(pictures=(b"\x89PNG",), notes=tuple(f"no images of {page.name}" for _, page in runs))

    monkeypatch.setattr(module, "galleries_of", galleries_of)
    made = build_report([run_of(tmp_path)])
    assert made.pictures == (b"\x89PNG",)
    assert "no images of one" in made.notes


def test_metrics_for_which_there_is_no_room_are_left_out_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_of(tmp_path)
    more = [replace(score, metric=metric) for metric in ("R@2", "mAP") for score in run.scores()]
    add(run, more)
    monkeypatch.setattr(module, "MOST_SCORES", 10)  # there are 4 of each
    made = build_report([run], gallery=False)
    assert [score.metric for score in made.runs[0].scores] == ["R@1", "R@2"] * 4
    assert made.notes[0] == "omitted to keep the page small: mAP; scores.csv of each run has them"


def test_a_record_that_says_training_is_believed_while_its_lock_is_held(tmp_path: Path) -> None:
    run = run_of(tmp_path, state="training")
    with locked(run):
        assert is_training(run)
    # its process was killed
    assert not is_training(run)


def test_a_run_that_is_probed_is_not_being_trained(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    with locked(run):
        assert not is_training(run)


REFRESH = '<meta http-equiv="refresh"'


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE", 0.0)


@pytest.fixture
def watched(tmp_path: Path) -> Run:
    found = Run(tmp_path / "one")
    written(found, stored(found, 5, "test", {FC6: first_hit(6)}), state="training")
    return found


@pytest.fixture
def lock(watched: Run) -> Iterator[contextlib.ExitStack]:
    """The lock of whoever works on the run, until it is closed."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(locked(watched))
        yield stack


def next_epoch(run: Run) -> None:
    table = ScoreTable(run.scores())
    table.add([replace(score, epoch=6) for score in run.scores()])
    table.write(run.scores_file)


def test_the_page_is_written_after_every_epoch_until_nobody_works_on_the_run(
    watched: Run, lock: contextlib.ExitStack, tmp_path: Path
) -> None:
    out, pages = tmp_path / "page.html", list[str]()

    def act(text: str) -> None:
        pages.append(out.read_text(encoding="utf-8"))
        next_epoch(watched) if "epoch 5" in text else lock.close()

    listener = Silent(act)
    last = watch_report(ReportRequest([watched], out), listener)
    assert listener.heard == [f"{out}: one epoch 5", f"{out}: one epoch 6"]
    assert [REFRESH in page for page in pages] == [True, True]
    assert REFRESH not in out.read_text(encoding="utf-8")
    assert max(score.epoch for score in last.runs[0].scores) == 6


def test_a_page_is_not_written_again_while_nothing_changes(
    watched: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looks = iter([True, True, True, True, False])
    monkeypatch.setattr(module, "is_worked_on", lambda run: next(looks))
    listener = Silent()
    watch_report(ReportRequest([watched], tmp_path / "page.html"), listener)
    assert listener.heard == [f"{tmp_path / 'page.html'}: one epoch 5"]


def test_a_page_without_images_says_that_they_come(watched: Run, lock: contextlib.ExitStack, tmp_path: Path) -> None:
    out, pages = tmp_path / "page.html", list[str]()

    def act(text: str) -> None:
        pages.append(out.read_text(encoding="utf-8"))
        lock.close()

    watch_report(ReportRequest([watched], out), Silent(act))
    coming = "images and their neighbours are shown once no process uses the runs"
    assert coming in pages[0]
    assert coming not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_and_leaves_a_whole_page_that_is_not_read_again(
    number: signal.Signals, watched: Run, lock: contextlib.ExitStack, tmp_path: Path
) -> None:
    out = tmp_path / "page.html"
    with pytest.raises(InterruptedRun, match="stopped watching; .*page.html is complete") as raised:
        watch_report(ReportRequest([watched], out), Silent(lambda text: signal.raise_signal(number)))
    assert raised.value.exit_code == 128 + number
    page = out.read_text(encoding="utf-8")
    assert page.rstrip().endswith("</html>")
    assert REFRESH not in page
    assert list(tmp_path.glob(".*")) == []
    lock.close()


def test_the_first_scores_are_waited_for(watched: Run, lock: contextlib.ExitStack, tmp_path: Path) -> None:
    text = watched.scores_file.read_text()
    watched.scores_file.unlink()
    out = tmp_path / "page.html"

    def act(told: str) -> None:
        if "no scores yet" in told:
            assert not out.exists()
            watched.scores_file.write_text(text)
        else:
            lock.close()

    listener = Silent(act)
    watch_report(ReportRequest([watched], out), listener)
    assert listener.heard == [
        "no scores yet of one; layerprobe train --probe measures after every epoch",
        f"{out}: one epoch 5",
    ]


def test_a_run_that_nobody_works_on_is_written_once(watched: Run, tmp_path: Path) -> None:
    listener = Silent()
    watch_report(ReportRequest([watched], tmp_path / "page.html"), listener)
    assert listener.heard == ["no process trains or probes these runs: the page is written once"]
    assert REFRESH not in (tmp_path / "page.html").read_text(encoding="utf-8")

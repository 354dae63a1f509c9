from __future__ import annotations

import hashlib
from pathlib import Path

from layerprobe.workflow.report.report import page_provenance, run_provenance
from layerprobe.workflow.run.runs import Run
from tests.workflow.rank_files import FC6, first_hit, stored, written


def run_of(cache: Path, **record: object) -> Run:
    run = Run(cache / "one")
    written(run, stored(run, 5, "test", {FC6: first_hit(3)}), **record)
    return run


def test_a_run_says_its_command_recipe_versions_and_hashes(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        command="layerprobe train netA",
        versions={"layerprobe": "1", "torch": "2"},
        device="cpu",
        threads=2,
        recipe={"data": {"name": "glyphs", "root": None}, "train": {"epochs": 5}},
        hashes={"epoch-0005.safetensors": "abc", "resume.pt": "d"},
        manifests={"test": "e"},
    )
    made = dict(run_provenance(run))
    assert made["command"] == "layerprobe train netA"
    assert made["recipe"] == "netA, experiment abc, seed 0"
    assert made["recipe in full"] == '[data] name = "glyphs"\n[train] epochs = 5'
    assert made["versions"] == "layerprobe 1, torch 2"
    assert made["device"] == "cpu, 2 threads"
    assert made["state"] == "finished, 5 epochs done"
    assert made["weights"] == "epoch-0005.safetensors, sha256 abc"
    assert made["images and classes"] == "test: sha256 e"
    assert made["scores"] == f"{run.scores_file}, sha256 {hashlib.sha256(run.scores_file.read_bytes()).hexdigest()}"
    assert "" not in made.values()


def test_weights_of_one_file_have_no_epoch(tmp_path: Path) -> None:
    file = {"path": "/x/own.pth", "part": None, "sha256": "ab", "size": 3}
    net = {"net": {"weights": "/x/own.pth"}, "data": {}}
    alone = run_of(tmp_path / "a", weights_files=[file | {"epoch": 0}], recipe=net, epochs_done=0)
    assert dict(run_provenance(alone))["weights"] == "/x/own.pth, sha256 ab"
    several = run_of(tmp_path / "b", weights_files=[file | {"epoch": epoch} for epoch in (0, 5)], recipe=net)
    assert dict(run_provenance(several))["weights"].startswith("epoch 0: /x/own.pth, sha256 ab\nepoch 5: ")


def test_a_record_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.record_file.write_text("{")
    assert "not JSON" in dict(run_provenance(run))["record"]
    assert "scores" in dict(run_provenance(run))


def test_the_page_says_the_rule_of_ties_and_when_it_was_made() -> None:
    made = dict(page_provenance(0))
    assert "differ by at most 1e-12" in made["how numbers are made"]
    assert "R@K is the share of queries that have a right item among their K nearest." in made["how numbers are made"]
    assert made["made at"] == "1970-01-01T00:00:00Z"
    assert made["command"].startswith("layerprobe")

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from layerprobe.system.errors import RecipeError
from layerprobe.workflow.run.runs import Run
from tests.workflow.watch.trainings import Augmented, network, watching


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.net(pixel_values)
        loss = {} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}
        return {**loss, "logits": logits}


class Named(Dataset[dict[str, Any]]):
    def __init__(self) -> None:
        self.data = Augmented()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> dict[str, Any]:
        image, label = self.data[row]
        return {"pixel_values": image, "labels": label}


def trainer_in(folder: Path, epochs: float = 2) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=4,
        dataloader_pin_memory=False,
    )
    return Trainer(Classifier(), arguments, train_dataset=Named())


def test_the_checkpoints_have_the_same_bytes_and_the_log_the_values(tmp_path: Path) -> None:
    trainer_in(tmp_path / "alone").train()
    trainer = trainer_in(tmp_path / "both")
    watching(tmp_path / "cache").trainer(trainer, "net")
    trainer.train()
    for step in (6, 12):
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth"):
            alone, both = (tmp_path / way / f"checkpoint-{step}" / name for way in ("alone", "both"))
            assert alone.read_bytes() == both.read_bytes(), name
    run = Run(tmp_path / "cache/watched")
    assert run.read().state == "finished"
    stored = {x.epoch: x.value for x in run.scores() if (x.split, x.ranked.layer.layer) == ("test", "output")}
    history = json.loads((tmp_path / "both/checkpoint-12/trainer_state.json").read_text())["log_history"]
    logged = {entry["epoch"]: entry["test_R@1/output"] for entry in history if "test_R@1/output" in entry}
    assert logged == stored
    assert list(stored) == [0, 1, 2]


def test_an_epoch_that_the_last_step_cuts_short_counts(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path / "out", epochs=1.5)
    watching(tmp_path / "cache").trainer(trainer, "net")
    trainer.train()
    assert {x.epoch for x in Run(tmp_path / "cache/watched").scores()} == {0, 1, 2}


def test_a_resumed_training_continues_its_run(tmp_path: Path) -> None:
    for epochs in (1, 2):
        trainer = trainer_in(tmp_path / "out", epochs=epochs)
        watching(tmp_path / "cache").trainer(trainer, "net")
        trainer.train(resume_from_checkpoint=epochs > 1)
    assert {x.epoch for x in Run(tmp_path / "cache/watched").scores()} == {0, 1, 2}


def test_an_unknown_network_is_refused_before_the_training(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path / "out")
    watching(tmp_path / "cache").trainer(trainer, "vit")
    with pytest.raises(RecipeError, match=r"Classifier has no submodule 'vit'\. Known: net"):
        trainer.train()
    assert trainer.state.global_step == 0


def test_the_whole_model_is_measured_by_default(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path / "out")
    watching(tmp_path / "cache", layers="net.0").trainer(trainer)
    torch.manual_seed(0)
    trainer.train()
    assert {x.ranked.layer.layer for x in Run(tmp_path / "cache/watched").scores()} == {"net.0"}

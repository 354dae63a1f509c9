from __future__ import annotations

import csv
import shutil
from pathlib import Path

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from layerprobe.system.errors import RecipeError
from layerprobe.workflow.run.runs import Run
from tests.workflow.watch.trainings import loaders, network, watching

pytestmark = [
    pytest.mark.filterwarnings("ignore:The '.*_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.:FutureWarning"),  # of Lightning's own call
]


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net, self.loss = network(), nn.CrossEntropyLoss()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 1e-2)


def fit(folder: Path, watch: bool, **options: object) -> Path:
    """The checkpoint of two epochs, with or without a watch."""
    callback = watching(folder / "cache").lightning(**options) if watch else None  # type: ignore[arg-type]
    seed_everything(2, verbose=False)
    logger = CSVLogger(folder, name="log", version="1")
    trainer = Trainer(
        max_epochs=2,
        accelerator="cpu",
        callbacks=[callback] if callback else [],
        logger=logger,
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    trainer.fit(Module(), loaders()["train"])
    trainer.save_checkpoint(folder / "end.ckpt")
    return folder / "end.ckpt"


def test_the_checkpoint_has_the_same_bytes_and_the_logger_the_values(tmp_path: Path) -> None:
    folder = tmp_path / "both"  # whose name is in the checkpoint
    alone = fit(folder, watch=False).read_bytes()
    shutil.rmtree(folder)
    assert fit(folder, watch=True).read_bytes() == alone
    run = Run(folder / "cache/watched")
    assert run.read().state == "finished"
    scores = {(x.epoch, f"{x.split}_{x.metric}/{x.ranked}"): x.value for x in run.scores()}
    assert {epoch for epoch, _ in scores} == {0, 1, 2}
    with (folder / "log/1/metrics.csv").open() as stream:
        logged = [row for row in csv.DictReader(stream) if row.get("test_R@1/output")]
    steps = 6  # of 48 images in batches of 8
    assert [int(row["step"]) // steps for row in logged] == [0, 1, 2]
    for epoch, row in enumerate(logged):
        assert float(row["test_R@1/output"]) == scores[epoch, "test_R@1/output"]


def test_the_network_is_the_only_part_with_parameters_or_the_named_one(tmp_path: Path) -> None:
    module = Module()
    callback = watching(tmp_path).lightning()
    callback._measure(Trainer(accelerator="cpu", logger=False, barebones=True), module, 0)  # type: ignore[attr-defined]
    assert Run(tmp_path / "watched").read().recipe_name == "Sequential"
    module.head = nn.Linear(8, 2)
    with pytest.raises(RecipeError, match=r"Module has 2 submodules with parameters: net, head\. Name the network"):
        callback._measure(Trainer(accelerator="cpu", logger=False, barebones=True), module, 1)  # type: ignore[attr-defined]
    with pytest.raises(RecipeError, match=r"Module has no submodule 'body'\. Known: net, head"):
        watching(tmp_path).lightning("body")._measure(Trainer(accelerator="cpu", barebones=True), module, 1)  # type: ignore[attr-defined]


def test_only_the_main_process_measures(tmp_path: Path) -> None:
    class Other:
        is_global_zero = False

    watching(tmp_path).lightning()._measure(Other(), Module(), 0)  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch

from layerprobe.data import pixel_cache
from layerprobe.data.images import read_image
from layerprobe.data.loading import plain_batches
from layerprobe.data.transforms import resize
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.workflow.manage.cache import list_images
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.train.building import TrainRequest
from tests.workflow.conftest import Silent

Make = Callable[..., TrainRequest]


def first_path(images: Path) -> Path:
    return images / "class0/0.png"


def test_the_fast_resize_is_the_recipes_to_ask_for_and_is_recorded(request_for: Make, images: Path) -> None:
    recipe = request_for("data.resize=fast").recipe
    image = from_recipe.build_dataset(recipe).splits["train"].image(0)
    np.testing.assert_array_equal(image, resize(read_image(first_path(images)), 16, 16, "fast"))
    assert "by torch" in from_recipe.transform_text(recipe)
    assert "by torch" not in from_recipe.transform_text(request_for().recipe)


@pytest.mark.parametrize("transform", ["D1", "D2"])
def test_the_fast_resize_reaches_the_papers_framings(request_for: Make, transform: str) -> None:
    views = []
    for method in ("exact", "fast"):
        split = from_recipe.build_dataset(
            request_for(f"data.transform={transform}", f"data.resize={method}").recipe
        ).splits["test"]
        (view,) = next(plain_batches(split, batch_size=1, workers=0)).numpy()
        views.append(view.astype(int))
    assert 0 < np.abs(views[0] - views[1]).max() <= 1


def test_d1_tests_on_the_original_resized_once_and_says_so(request_for: Make, images: Path) -> None:
    request = request_for("data.transform=D1", "data.invert=true", "data.validation_classes=0.5")
    splits = from_recipe.build_dataset(request.recipe).splits
    for name, place in (("validation", 0), ("test", 5)):
        found = list(plain_batches(splits[name], batch_size=1, workers=0))[place][0]
        original = read_image(images / splits[name].ids[place])
        np.testing.assert_array_equal(found.numpy(), 255 - resize(original, 16, 16, "exact"))
    assert "D1 in one step" in from_recipe.transform_text(request.recipe)


def test_an_exif_rotation_is_the_recipes_to_ask_for_and_is_recorded(request_for: Make, images: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 3  # half a turn
    PIL.Image.open(first_path(images)).save(first_path(images), exif=exif)
    stored, turned = (
        from_recipe.build_dataset(request_for(f"data.exif_rotation={asked}").recipe).splits["train"].image(0)
        for asked in ("false", "true")
    )
    np.testing.assert_array_equal(turned, np.rot90(stored, 2))
    assert '"exif":"applied"' in from_recipe.transform_text(request_for("data.exif_rotation=true").recipe)


def test_the_white_of_16_bits_is_the_recipes_to_choose_and_is_recorded(request_for: Make, images: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 1024, (16, 16), dtype=np.uint16)
    PIL.Image.fromarray(grey).save(first_path(images))
    recipe = request_for("data.white=1023").recipe
    found = from_recipe.build_dataset(recipe).splits["train"].image(0)
    np.testing.assert_array_equal(found[:, :, 0], np.floor(grey / 1023 * 255 + 0.5))
    assert '"white":1023' in from_recipe.transform_text(recipe)
    with pytest.raises(RecipeError, match=r"white.* less than or equal to 65535"):
        request_for("data.white=65536")


def test_each_way_of_decoding_is_kept_apart(request_for: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 0)
    for setting in ("data.resize=exact", "data.resize=fast", "data.exif_rotation=true", "data.white=4095"):
        from_recipe.build_dataset(request_for(setting).recipe, Decoding(tmp_path, Silent(), 0))
    assert len(list_images(tmp_path)) == 4 * 2


@pytest.mark.parametrize("name", ["googlenet", "googlenet_caffe", "bn_inception"])
def test_pixels_are_scaled_once(request_for: Make, name: str, tmp_path: Path) -> None:
    recipe = request_for(f"net.name={name}", "net.pool=avg", "data.transform=D3", "data.augment=photo").recipe
    with pytest.raises(RecipeError, match=f'but {name} converts its input itself. Set data.transform = "D2"'):
        from_recipe.build_net(recipe, cache=tmp_path)
    from_recipe.build_net(recipe)  # of a run that was trained with it


def test_pretrained_weights_get_the_pixels_they_were_trained_on(request_for: Make) -> None:
    for weights, mean, refused in (("imagenet", 0.5, True), ("imagenet", 0.485, True), ("none", 0.5, False)):
        recipe = request_for("net.name=googlenet", "net.pool=avg", f"net.weights={weights}", f"data.mean={mean}").recipe
        net = from_recipe.build_net(recipe)
        if refused:
            with pytest.raises(RecipeError, match=r"Remove data\.mean and data\.std"):
                from_recipe.require_input(recipe, net)
        else:
            from_recipe.require_input(recipe, net)


def test_of_a_file_with_two_networks_the_part_after_its_name_is_taken(request_for: Make, tmp_path: Path) -> None:
    nets = {
        name: from_recipe.build_net(request_for("train.seed=1" if name == "teacher" else "train.seed=2").recipe).module
        for name in ("student", "teacher")
    }
    states = {name: {f"backbone.{key}": value for key, value in net.state_dict().items()} for name, net in nets.items()}
    torch.save({**states, "args": argparse.Namespace(rate=0.1)}, tmp_path / "dino.pth")
    with pytest.raises(DataError, match=r"several sets of weights fit: 'student\.backbone', 'teacher\.backbone'"):
        from_recipe.build_net(request_for(f"net.weights={tmp_path / 'dino.pth'}").recipe, cache=tmp_path)
    request = request_for(f"net.weights={tmp_path / 'dino.pth'}#teacher")
    built = from_recipe.build_net(request.recipe, cache=tmp_path)
    assert all(
        torch.equal(value, nets["teacher"].state_dict()[key]) for key, value in built.module.state_dict().items()
    )
    assert built.notes[0].startswith("dino.pth: 'teacher.backbone.' is taken off the names of")
    assert built.new_parameters == frozenset()


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)


@pytest.mark.usefixtures("four_gpus")
@pytest.mark.parametrize(
    ("rank", "name", "device"),
    [
        (None, "auto", "cuda"),
        ("2", "auto", "cuda:2"),
        ("2", "cuda", "cuda:2"),
        ("2", "cuda:1", "cuda:1"),
        ("2", "cpu", "cpu"),
    ],
)
def test_under_torchrun_each_process_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, name: str, device: str
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    assert from_recipe.choose_device(name) == torch.device(device)


@pytest.mark.usefixtures("four_gpus")
def test_more_processes_than_gpus_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "4")
    with pytest.raises(EnvironmentFault, match="no device cuda:4: torch .* sees 4 GPUs"):
        from_recipe.choose_device("auto")


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (4, 3), (64, 8)])
def test_a_gpu_gets_a_data_worker_from_each_spare_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    monkeypatch.setattr(from_recipe, "usable_cores", lambda: cores)
    assert from_recipe.choose_workers(None, torch.device("cuda")) == workers
    assert from_recipe.choose_workers(None, torch.device("cpu")) == 0
    assert from_recipe.choose_workers(5, torch.device("cuda")) == 5


@pytest.mark.parametrize(("cuda", "mps", "device"), [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_auto_is_cuda_or_else_mps_or_else_the_cpu(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, mps: bool, device: str
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert from_recipe.choose_device("auto") == torch.device(device)


def test_mps_is_taken_where_torch_has_it_and_told_where_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert from_recipe.choose_device("mps") == torch.device("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(EnvironmentFault, match="^no device mps: torch .* sees no Apple GPU. Use --device cpu"):
        from_recipe.choose_device("mps")


def test_a_process_of_torchrun_is_not_given_anothers_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(RecipeError, match="--device cuda:0: each process of torchrun takes a GPU of its own"):
        from_recipe.choose_device("cuda:0")

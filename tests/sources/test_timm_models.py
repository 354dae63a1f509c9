from __future__ import annotations

import contextlib
import io
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from layerprobe.hooks import list_layers
from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.sources import hub, timm_models
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.values.network_input import OwnInput
from tests.sources.conftest import build, embeddings, noise, source

VIT = "timm:test_vit"
HALF = (0.5, 0.5, 0.5)


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty local cache of the hub, and no network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_vit_has_its_blocks_its_output_and_a_head() -> None:
    net = build(VIT, fc=[8, 4], image_size=32)
    assert list(net.layers) == [*(f"blocks.{i}" for i in range(6)), "output", "fc6", "fc7"]
    assert net.layers["blocks.5"] == "model.blocks.5"
    assert net.layers["output"] == "model"
    assert net.parts["blocks.0.attn"] == "model.blocks.0.attn"
    assert (net.root, net.final_norm, net.prefix_tokens) == ("model", "model.norm", 1)
    assert net.versions == {"timm": timm.__version__}
    assert embeddings(net, noise(32)).shape == (2, net.embedding_dim) == (2, 4)


def test_without_a_head_the_embedding_is_what_timm_gives() -> None:
    net = build("timm:test_convnext", image_size=64)
    assert torch.equal(embeddings(net, noise(64)), net.module.get_submodule("model")(noise(64)))
    assert net.embedding_dim == net.module.get_submodule("model").num_features


def test_the_seed_decides_what_is_drawn_and_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, same, other = (build(VIT, seed=seed, fc=[4], image_size=32).module.state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["model.blocks.0.attn.qkv.weight"], other["model.blocks.0.attn.qkv.weight"])
    assert not torch.equal(one["fc6.weight"], other["fc6.weight"])


def test_untrained_everything_is_new_and_of_its_own_weights_the_head_alone(no_cache: Path) -> None:
    put_weights(no_cache, timm.create_model("test_vit", num_classes=0))
    untrained, pretrained = build(VIT, fc=[4]), build(VIT, fc=[4], weights="model")
    assert untrained.new_parameters == {name for name, _ in untrained.module.named_parameters()}
    assert pretrained.new_parameters == {"fc6.weight", "fc6.bias"}


def put_weights(cache: Path, model: torch.nn.Module) -> None:
    """Put a model's weights where the hub's client keeps those of timm/test_vit.r160_in1k."""
    repository = cache / "models--timm--test_vit.r160_in1k"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abc")
    (repository / "snapshots" / "abc").mkdir(parents=True)
    tensors = model.state_dict() | {"head.weight": torch.ones(1000, 64), "head.bias": torch.ones(1000)}
    save_file(tensors, repository / "snapshots" / "abc" / "model.safetensors")


def test_its_own_weights_come_from_the_local_cache(no_cache: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0).eval()
    put_weights(no_cache, model)
    net = build(VIT, weights="model", seed=5)
    with torch.inference_mode():
        assert torch.equal(embeddings(net, noise(160)), model(noise(160)))
    left_out = "output is the input of the model's classifier (head), which is left out"
    assert net.notes == ("timm:test_vit: r160_in1k", left_out)  # the tag that timm takes without one


def test_a_torch_file_in_the_cache_is_read_without_running_code(no_cache: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0).eval()
    put_weights(no_cache, model)
    (folder,) = (no_cache / "models--timm--test_vit.r160_in1k" / "snapshots").iterdir()
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save({"model": model.state_dict()}, file)
    net = build(VIT, weights="model")
    with torch.inference_mode():
        assert torch.equal(embeddings(net, noise(160)), model(noise(160)))
    assert "state_dict" not in vars(net.module.get_submodule("model"))["pretrained_cfg"]
    torch.save({"model": model.state_dict(), "f": print}, file)
    with pytest.raises(DataError, match="pytorch_model.bin: holds Python code .*print"):
        build(VIT, weights="model")


def test_position_embeddings_for_another_size_are_timms_and_noted(no_cache: Path) -> None:
    model = timm.create_model("test_vit", num_classes=0).eval()
    put_weights(no_cache, model)
    net = build(VIT, weights="model", image_size=64)
    model.set_input_size(64)  # type: ignore[operator] # a method
    with torch.inference_mode():
        torch.testing.assert_close(embeddings(net, noise(64)), model(noise(64)))
    assert net.notes[1:-1] == ("timm:test_vit is made for 160 px: its position embeddings are interpolated to 64 px",)


def drawn(name: str, size: int) -> tuple[Path, dict[str, torch.Tensor]]:
    model = timm.create_model(name, img_size=size, num_classes=0)
    return Path(f"{name}.pth"), {key: torch.randn_like(value) / 50 for key, value in model.state_dict().items()}


def of_timms_loader(name: str, size: int, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    overlay = {"state_dict": dict(tensors)}
    with contextlib.redirect_stdout(io.StringIO()):
        model = timm.create_model(name, True, pretrained_cfg_overlay=overlay, img_size=size, num_classes=0)
    with torch.inference_mode():
        output: torch.Tensor = model.eval()(noise(size))
    return output


def test_a_file_of_dinov3_by_its_authors_names_is_read_as_timm_does() -> None:
    file, tensors = drawn("vit_small_patch16_dinov3", 32)
    authors = {}
    for key, value in tensors.items():
        name = re.sub(r"gamma_(\d)", r"ls\1.gamma", key.replace("reg_token", "storage_tokens"))
        authors[name] = value
        if name.endswith("qkv.weight"):
            authors |= {f"{name[:-6]}{end}": torch.zeros(3 * 384) for end in ("bias", "bias_mask")}
    authors |= {"mask_token": torch.zeros(1, 384), "rope_embed.periods": torch.ones(16)}
    net = build(
        f"timm:{file.stem}", weights=FileWeights({f"teacher.{k}": v for k, v in authors.items()}, file), image_size=32
    )
    assert torch.equal(embeddings(net, noise(32)), of_timms_loader(file.stem, 32, authors))
    assert net.notes[-1] == f"{file}: names below 'teacher' are converted by timm"


def test_a_filter_of_another_name_is_timms_too() -> None:
    # timm's VGG calls the first two layers of torchvision's classifier pre_logits.fc1 and fc2, by a `_filter_fn`.
    timms = {"features.0.weight": "features.0.weight", "classifier.3.bias": "pre_logits.fc2.bias"}
    tensors = {name: torch.ones(1) for name in timms}
    assert list(timm_models._convert("vgg11", nn.Identity(), tensors)) == list(timms.values())


def test_a_file_of_dinov2_by_its_authors_names_is_read_as_timm_does() -> None:
    file, tensors = drawn("vit_small_patch14_reg4_dinov2", 28)
    authors = {key.replace("reg_token", "register_tokens"): value for key, value in tensors.items()}
    authors["mask_token"] = torch.zeros(1, 384)
    authors["pos_embed"] = torch.randn(1, 1 + 4 * 4, 384)  # of 56 px, with the class token's
    net = build(f"timm:{file.stem}", weights=FileWeights(authors, file), image_size=28)
    assert torch.equal(embeddings(net, noise(28)), of_timms_loader(file.stem, 28, authors))
    assert net.notes[-1] == f"{file}: names are converted by timm, and pos_embed to another size"


def test_absent_weights_name_the_file_and_the_folder(no_cache: Path) -> None:
    named = f"needs model.safetensors or pytorch_model.bin of timm/test_vit.r160_in1k, which is not in {no_cache}"
    with pytest.raises(EnvironmentFault, match=f"{re.escape(named)} and .*HF_HUB_OFFLINE is set.*--weights none"):
        build(VIT, weights="model")


def test_without_a_network_the_error_comes_at_once(no_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:1")  # where nothing listens
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert hub.unreachable() == "no connection to 127.0.0.1 (Connection refused)"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:test_vt", "unknown model timm:test_vt. Did you mean 'test_vit'? timm.list_models() lists the names"),
        ("timm:test_vit.x", "timm has no weights 'x' of test_vit. Known: test_vit.r160_in1k"),
    ],
)
def test_an_unknown_name_has_its_near_miss(name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        build(name)


def test_a_size_that_the_model_does_not_take_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"timm:test_vit does not take images of 65 px: Input height \(65\) should"):
        build(VIT, image_size=65)


def test_the_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(EnvironmentFault, match=re.escape("timm is not installed. pip install 'timm>=")):
        build(VIT)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "vit_small_patch14_reg4_dinov2.lvd142m",
            OwnInput(518, 518, "bicubic", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), kept=1.0),
        ),
        (
            "vit_base_patch16_siglip_224.webli",
            OwnInput(224, 248, "bicubic", HALF, HALF, kept=0.9),
        ),
        ("resnet50.tv_in1k", OwnInput(224, 256, "bilinear", kept=0.875)),
        ("convnext_base.fb_in22k_ft_in1k_384", OwnInput(384, None, "bicubic")),
        ("dm_nfnet_f0.dm_in1k", OwnInput(192, 213, "bicubic", squeezed=True, kept=0.9)),
    ],
)
def test_the_models_own_input_is_timms(name: str, expected: OwnInput | None) -> None:
    found, argument = source(f"timm:{name}")
    assert found.own_input(argument) == expected


def test_a_vector_takes_no_pool() -> None:
    message = '[net]: pool = "max": the output of timm:test_vit is a vector, which has none'
    with pytest.raises(RecipeError, match=re.escape(message)):
        build(VIT, pool="max", image_size=32)


def test_a_model_whose_images_are_no_squares_is_read_at_its_own_size(monkeypatch: pytest.MonkeyPatch) -> None:
    tag = "test_vit.r160_in1k"
    known = timm.get_pretrained_cfg(tag)
    assert known is not None
    config = replace(known, input_size=(3, 64, 32), crop_pct=1.0)
    monkeypatch.setitem(timm.models._registry._model_pretrained_cfgs, tag, config)
    net = build(f"timm:{tag}")
    assert net.image_size == (64, 32)
    assert net.own_input == OwnInput((64, 32), (64, 32), "bicubic", HALF, HALF, kept=1.0)
    (last,) = [info for info in list_layers(net, (64, 32)) if info.name == "blocks.5"]
    assert (last.layout.grid, last.layout.prefix) == ((4, 2), 1)  # patches of 16 px
    images = torch.randn(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(embeddings(net, images), net.module.get_submodule("model")(images))


def test_another_height_and_width_interpolate_position_embeddings() -> None:
    net = build(VIT, image_size=(64, 32))
    assert net.module.state_dict()["model.pos_embed"].shape[1] == 1 + 4 * 2
    images = torch.randn(2, 3, 64, 32, generator=torch.Generator().manual_seed(0))
    assert embeddings(net, images).shape == (2, net.embedding_dim)


def test_a_file_of_another_patch_size_is_refused() -> None:
    small = timm.create_model("vit_small_patch16_224", img_size=32, num_classes=0)
    weights = FileWeights(small.state_dict(), Path("s.pth"))
    what = r"patch_embed.proj.weight has shape \(384, 3, 16, 16\), not \(384, 3, 32, 32\)"
    with pytest.raises(DataError, match=what):
        build("timm:vit_small_patch32_224", weights=weights, image_size=32)


def test_a_file_with_registers_is_none_of_the_model_without() -> None:
    _, tensors = drawn("vit_small_patch14_reg4_dinov2", 28)
    authors = {key.replace("reg_token", "register_tokens"): value for key, value in tensors.items()}
    authors["pos_embed"] = torch.randn(1, 1 + 2 * 2, 384)
    with pytest.raises(DataError, match="there is no place for register_tokens"):
        build("timm:vit_small_patch14_dinov2", weights=FileWeights(authors, Path("r.pth")), image_size=28)

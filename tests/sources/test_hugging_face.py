"""Models of transformers, made from configurations on the spot, against their own outputs."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file as load_safetensors
from safetensors.torch import save_file as save_safetensors
from torch import Tensor
from torchvision.transforms.v2.functional import resize

from layerprobe.nets.checkpoint_files import read_checkpoint
from layerprobe.sources.hub import quiet
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.values.network_input import OwnInput
from layerprobe.workflow.run.epoch_weights import load_file
from tests.sources.conftest import build, embeddings, noise, source

with quiet():
    import peft
    import transformers

HALF = (0.5, 0.5, 0.5)
NARROW: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
Save = Callable[..., str]


def takes_names_of_filters() -> bool:
    """Whether torchvision, by which these processors resize, takes the name of a filter."""
    try:
        resize(torch.zeros(3, 4, 4), [2, 2], interpolation="bicubic")
    except ValueError:
        return False
    return True


def made(kind: str, *, image_size: int = 32, patch_size: int = 8, **options: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**NARROW, image_size=image_size, patch_size=patch_size)
    with quiet():
        return getattr(transformers, f"{kind}Model")(config, **options).eval()


def of_images_and_texts(kind: str) -> Any:
    vision = {**NARROW, "image_size": 32, "patch_size": 8}
    text = {**NARROW, "vocab_size": 100, "max_position_embeddings": 8}
    with quiet():
        config = getattr(transformers, f"{kind}Config")(vision_config=vision, text_config=text)
        return getattr(transformers, f"{kind}Model")(config).eval()


def of_library(model: Any, size: int, **options: Any) -> Any:
    with torch.inference_mode():
        return model(noise(size), **options)


def test_dinov2_gives_what_transformers_gives(saved: Save) -> None:
    model = made("Dinov2", image_size=56, patch_size=14)
    net = build(saved(model), weights="model", fc=[4], seed=3)
    assert list(net.layers) == ["encoder.layer.0", "encoder.layer.1", "output", "fc6"]
    assert (net.final_norm, net.image_size) == ("model.layernorm", 56)
    assert net.new_parameters == {"fc6.weight", "fc6.bias"}
    plain = build(saved(model), weights="model")
    torch.testing.assert_close(embeddings(plain, noise(56)), of_library(model, 56).pooler_output)


def test_a_folder_saved_again_has_another_origin(saved: Save) -> None:
    name = saved(made("ViT", add_pooling_layer=False))
    found, argument = source(name)
    before = found.origin(argument)
    assert before.keys() == {"transformers", Path(argument).name}
    assert found.origin(argument) == before
    assert saved(made("ViT", add_pooling_layer=False)) == name
    assert found.origin(argument) != before


def test_a_pooler_which_files_often_lack_is_left_out(saved: Save) -> None:
    model = made("ViT", add_pooling_layer=False)
    net = build(saved(model), weights="model")
    torch.testing.assert_close(embeddings(net, noise(32)), of_library(model, 32).last_hidden_state[:, 0])
    assert not any("pooler" in name for name in net.module.state_dict())


def test_another_size_has_transformers_own_interpolation_and_a_note(saved: Save) -> None:
    model = made("ViT", add_pooling_layer=False)
    name = saved(model)
    net = build(name, weights="model", image_size=64)
    expected = of_library(model, 64, interpolate_pos_encoding=True).last_hidden_state[:, 0]
    torch.testing.assert_close(embeddings(net, noise(64)), expected)
    assert net.notes == (f"{name} is made for 32 px: its position embeddings are interpolated to 64 px",)


def test_of_clip_the_part_that_sees_images_is_taken(saved: Save) -> None:
    model = of_images_and_texts("CLIP")
    net = build(saved(model), weights="model")
    expected = model.get_image_features(noise(32))
    expected = expected if isinstance(expected, Tensor) else expected.pooler_output
    torch.testing.assert_close(embeddings(net, noise(32)), expected.detach())
    assert next(iter(net.layers)) == "vision_model.encoder.layers.0"
    assert not any("text" in name for name in net.module.state_dict())


def test_of_siglip_the_pooled_image_is_taken(saved: Save) -> None:
    model = of_images_and_texts("Siglip")
    net = build(saved(model), weights="model")
    expected = model.vision_model(noise(32)).pooler_output
    torch.testing.assert_close(embeddings(net, noise(32)), expected.detach())


def test_without_weights_the_configuration_is_enough(saved: Save) -> None:
    name = saved(made("Dinov2", image_size=56, patch_size=14))
    Path(name.removeprefix("hf:"), "model.safetensors").unlink()
    net = build(name, seed=1)
    assert net.new_parameters == {key for key, _ in net.module.named_parameters()}
    with pytest.raises(DataError, match="has not its weights"):
        build(name, weights="model")


def test_weights_that_lack_tensors_are_refused(saved: Save) -> None:
    name = saved(made("ViT", add_pooling_layer=False))
    config = Path(name.removeprefix("hf:"), "config.json")
    config.write_text(config.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    with pytest.raises(DataError, match=r"its weights have not .*layer.*2.* and \d+ more, which would be drawn"):
        build(name, weights="model")


@pytest.mark.parametrize("kind", ["ViT", "Dinov2", "Beit"])
@pytest.mark.parametrize("shards", [1, 3])
def test_files_of_a_classifier_by_transformers_names_are_read_as_transformers_does(
    saved: Save, tmp_path: Path, kind: str, shards: int
) -> None:
    with quiet():
        config = getattr(transformers, f"{kind}Config")(**NARROW, image_size=32, patch_size=8, num_labels=5)
        model = getattr(transformers, f"{kind}ForImageClassification")(config)
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        model.save_pretrained(tmp_path / "shards", max_shard_size=size // shards + 1000)
    name = saved(model)
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) >= shards
    expected = build(name, weights="model").module.state_dict()
    net = build(name, seed=1)
    notes = load_file(net, name, tmp_path / "shards", None).notes
    assert any(note.startswith("shards: names are converted by hf") for note in notes)
    assert all(torch.equal(value, expected[key]) for key, value in net.module.state_dict().items())


def test_files_by_transformers_names_below_a_prefix_are_found_and_two_are_told(saved: Save, tmp_path: Path) -> None:
    name = saved(made("ViT", add_pooling_layer=False))
    tensors = load_safetensors(Path(name.removeprefix("hf:"), "model.safetensors"))
    assert "encoder.layer.0.attention.attention.query.weight" in tensors
    content = {"state_dict": {f"model.{key}": value for key, value in tensors.items()}}
    torch.save(content, tmp_path / "one.ckpt")
    torch.save({"ema": {key: value + 1 for key, value in tensors.items()}, **content}, tmp_path / "two.ckpt")
    net = build(name, weights=read_checkpoint(tmp_path / "one.ckpt"))
    expected = build(name, weights="model").module.state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in net.module.state_dict().items())
    assert net.notes == ("one.ckpt: names below 'state_dict.model' are converted by hf",)
    with pytest.raises(
        DataError, match=r"several sets of weights fit: 'ema', 'state_dict.*\. Choose one: .*ckpt#ema or"
    ):
        build(name, weights=read_checkpoint(tmp_path / "two.ckpt"))
    chosen = build(name, weights=read_checkpoint(tmp_path / "two.ckpt", "ema")).module.state_dict()
    assert torch.equal(chosen["model.layernorm.weight"], expected["model.layernorm.weight"] + 1)


@pytest.mark.parametrize(
    ("layers", "message"), [(1, "are missing or have another shape"), (3, "there is no place for")]
)
def test_files_of_another_depth_are_refused(saved: Save, tmp_path: Path, layers: int, message: str) -> None:
    name = saved(made("ViT", add_pooling_layer=False))
    with quiet():
        config = transformers.ViTConfig(**{**NARROW, "num_hidden_layers": layers}, image_size=32, patch_size=8)
        transformers.ViTModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "other")
    with pytest.raises(DataError, match=f"weights of another network than hf:.*{message}"):
        build(name, weights=read_checkpoint(tmp_path / "other"))


@pytest.mark.parametrize("old_names", [False, True])
def test_an_adapter_of_a_classifier_is_merged_as_peft_does(saved: Save, tmp_path: Path, old_names: bool) -> None:
    with quiet():
        model = transformers.ViTForImageClassification(transformers.ViTConfig(**NARROW, image_size=32, patch_size=8))
        name = saved(model)
        saves, adapts = ["classifier"], ["q_proj", "projection"]
        options = peft.LoraConfig(r=3, lora_alpha=7, target_modules=adapts, modules_to_save=saves)
        adapted = peft.get_peft_model(model, options)
        for key, parameter in adapted.named_parameters():
            if "lora_" in key:
                torch.nn.init.normal_(parameter, std=0.1)
        adapted.save_pretrained(str(tmp_path / "adapter"))
        merged: Any = adapted.merge_and_unload().eval()
    if old_names:  # as transformers before 5 called its modules
        path = tmp_path / "adapter" / "adapter_model.safetensors"
        tensors = {
            re.sub(r"layers\.(\d)\.attention\.q_proj", r"encoder.layer.\1.attention.attention.query", key): value
            for key, value in load_safetensors(path).items()
        }
        assert any("encoder.layer.0.attention.attention.query.lora_A" in key for key in tensors)
        save_safetensors(tensors, path)
    net = build(name, seed=1)
    notes = load_file(net, name, tmp_path / "adapter", None).notes
    expected = merged.vit(noise(32)).last_hidden_state[:, 0].detach()
    torch.testing.assert_close(embeddings(net, noise(32)), expected, rtol=0, atol=1e-6)
    assert not torch.allclose(embeddings(build(name, weights="model"), noise(32)), expected, atol=1e-2)
    assert "LoRA (r = 3, alpha = 7) is merged" in notes[0]


def test_what_takes_no_images_is_refused(saved: Save) -> None:
    with quiet():
        model = transformers.BertModel(transformers.BertConfig(**NARROW, vocab_size=50))
    with pytest.raises(RecipeError, match="takes input_ids, not images"):
        build(saved(model))


def test_a_masked_autoencoder_which_masks_at_random_is_refused(saved: Save) -> None:
    with pytest.raises(RecipeError, match="draws random numbers for every image"):
        build(saved(made("ViTMAE")))


def test_a_name_that_is_not_cached_says_what_is_wanted_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentFault, match=r"hf:nobody/nothing needs config.json of nobody/nothing, which"):
        build("hf:nobody/nothing")


def test_a_folder_that_is_absent_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(f"{tmp_path}/none: no such folder")):
        build(f"hf:{tmp_path}/none")


def test_the_package_that_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(EnvironmentFault, match=re.escape("pip install 'transformers>=")):
        build("hf:nobody/nothing")


def test_a_model_with_code_of_its_own_is_refused_and_nothing_runs(saved: Save, tmp_path: Path) -> None:
    folder = Path(saved(made("ViT", add_pooling_layer=False)).removeprefix("hf:"))
    ran = tmp_path / "ran"
    (folder / "mine.py").write_text(f"open({str(ran)!r}, 'w')\n")
    config = folder / "config.json"
    text = config.read_text().replace('"model_type": "vit"', '"model_type": "mine"')
    config.write_text(text.replace("{", '{"auto_map": {"AutoConfig": "mine.C", "AutoModel": "mine.M"},', 1))
    with pytest.raises(RecipeError, match="cannot be loaded.*code"):
        build(f"hf:{folder}")
    assert not ran.exists()


@pytest.mark.parametrize(
    ("kind", "options", "expected"),
    [
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 56}, "image_mean": HALF},
            OwnInput(56, 64, "bicubic", HALF, (0.26862954, 0.26130258, 0.27577711), "down"),
        ),
        (
            "ViTImageProcessor",
            {"size": {"height": 32, "width": 32}},
            OwnInput(32, None, "bilinear", HALF, HALF, "down"),
        ),
        (
            "ConvNextImageProcessor",
            {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3, "image_mean": HALF, "image_std": HALF},
            OwnInput(224, 256, "bicubic", HALF, HALF, "down", kept=0.875),
        ),
        (
            "DeiTImageProcessor",
            {"size": {"height": 64, "width": 64}, "crop_size": {"height": 56, "width": 56}, "resample": 2},
            OwnInput(56, 64, "bilinear", HALF, HALF, "down", squeezed=True),
        ),
        (
            "ViTImageProcessor",
            {"size": {"height": 32, "width": 16}},
            OwnInput((32, 16), None, "bilinear", HALF, HALF, "down"),
        ),
        (
            "BitImageProcessor",
            {"size": {"shortest_edge": 64}, "crop_size": {"height": 56, "width": 24}, "image_mean": HALF},
            OwnInput((56, 24), 64, "bicubic", HALF, (0.26862954, 0.26130258, 0.27577711), "down"),
        ),
        ("ViTImageProcessor", {"size": {"height": 32, "width": 32}, "do_rescale": False}, None),
        ("ViTImageProcessor", {"size": {"height": 32, "width": 32}, "resample": "nearest-exact"}, None),
        pytest.param(
            "ViTImageProcessor",
            {"size": {"height": 32, "width": 32}, "resample": "bicubic"},
            OwnInput(32, None, "bicubic", HALF, HALF, "down"),
            marks=pytest.mark.skipif(not takes_names_of_filters(), reason="this torchvision takes no names of filters"),
        ),
    ],
)
def test_the_models_own_input_is_its_processors(
    saved: Save, kind: str, options: dict[str, Any], expected: OwnInput | None
) -> None:
    statistics = {"image_mean": HALF, "image_std": HALF} if kind == "DeiTImageProcessor" else {}
    with quiet():
        processor = getattr(transformers, kind)(**options, **statistics)
    found, argument = source(saved(made("ViT", add_pooling_layer=False), processor))
    assert found.own_input(argument) == expected


def test_a_folder_without_a_processor_has_no_own_input(saved: Save) -> None:
    found, argument = source(saved(made("ViT", add_pooling_layer=False)))
    assert found.own_input(argument) is None


def test_an_existing_folder_comes_before_a_name_of_the_hub(
    saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(saved(made("ViT", add_pooling_layer=False)).removeprefix("hf:"), tmp_path / "google" / "vit")
    monkeypatch.chdir(tmp_path)
    assert build("hf:google/vit").embedding_dim == 32

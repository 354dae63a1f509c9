"""What sources know of a model's own input, against the transforms of their libraries: not a pixel may differ."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from sklearn.datasets import load_sample_image

from layerprobe.registry import NETWORKS, load_apart
from layerprobe.system.naming import name_model
from layerprobe.values.network_input import OwnInput

Library = Callable[[PIL.Image.Image], Any]  # an image -> (3, size, size), normalised


def own_input(model: str) -> OwnInput | None:
    name_model(model)
    source, name = load_apart("network", NETWORKS, model)
    found: OwnInput | None = source.own_input(name)
    return found


def require_same_pixels(own: OwnInput | None, library: Library) -> None:
    assert own is not None
    mean, std = (np.array(channels)[:, None, None] for channels in (own.mean, own.std))
    for pixels in (photo := load_sample_image("china.jpg"), photo[:401, 90:423].copy()):
        image = PIL.Image.fromarray(pixels)
        theirs = np.asarray(library(image), np.float64)
        np.testing.assert_allclose(
            (theirs * std + mean) * 255, np.asarray(own.framed(image)).transpose(2, 0, 1), atol=1e-3
        )


def timms_own(name: str) -> Library:
    timm = pytest.importorskip("timm")
    config = timm.get_pretrained_cfg(name).to_dict()
    transform: Library = timm.data.create_transform(**timm.data.resolve_data_config(pretrained_cfg=config))
    return transform


@pytest.mark.parametrize(
    "name",
    [
        "vit_small_patch14_dinov2.lvd142m",
        "vit_base_patch16_siglip_224.webli",
        "resnet50.a1_in1k",
        "swin_tiny_patch4_window7_224.ms_in1k",
        "dm_nfnet_f0.dm_in1k",  # squeezed to 213, then cropped
        "coat_lite_medium_384.in1k",  # squeezed
        "vit_base_patch16_sapiens2.fb",  # squeezed to 1024 x 768
    ],
)
def test_the_input_of_timms_models_is_timms(name: str) -> None:
    library = timms_own(name)
    require_same_pixels(own_input(f"timm:{name}"), library)


@pytest.mark.slow
def test_the_input_of_every_model_of_timm_is_timms_or_not_known() -> None:
    timm = pytest.importorskip("timm")
    configs: dict[str, tuple[str, dict[str, Any]]] = {}
    for name in timm.list_models(pretrained=True):
        config = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        configs.setdefault(repr(config), (name, config))
    unknown = []
    for name, config in configs.values():
        own = own_input(f"timm:{name}")
        if own is None:
            unknown.append(config)
        else:
            require_same_pixels(own, timms_own(name))
    for config in unknown:
        assert config["crop_mode"] == "border" or config["crop_pct"] > 1, config


TORCHVISION = ["resnet18", "resnet50/IMAGENET1K_V2", "swin_t", "vit_b_16/IMAGENET1K_SWAG_E2E_V1", "inception_v3"]


@pytest.mark.parametrize("name", TORCHVISION)
def test_the_input_of_torchvisions_models_is_that_of_their_weights(name: str) -> None:
    from torchvision.models import get_model_weights

    network, _, tag = name.partition("/")
    weights = get_model_weights(network)
    require_same_pixels(own_input(f"torchvision:{name}"), (weights[tag] if tag else weights.DEFAULT).transforms())


@pytest.mark.parametrize("name", ["ViT-B-32/openai", "ViT-B-16-SigLIP/webli", "MobileCLIP-S1/datacompdr", "RN50"])
def test_the_input_of_open_clips_models_is_open_clips(name: str) -> None:
    open_clip = pytest.importorskip("open_clip")
    from open_clip.transform import PreprocessCfg, image_transform_v2

    architecture, _, tag = name.partition("/")
    size = open_clip.get_model_config(architecture)["vision_cfg"]["image_size"]
    published = open_clip.pretrained.get_pretrained_cfg(architecture, tag) if tag else {}
    known = {key: value for key, value in published.items() if key in asdict(PreprocessCfg())}
    steps = PreprocessCfg(**(known | {"size": size}))
    require_same_pixels(own_input(f"open_clip:{name}"), image_transform_v2(steps, is_train=False))


def of_a_folder(folder: Path, kind: str, **settings: Any) -> tuple[OwnInput | None, Library]:
    """What is known of a Hugging Face folder with this processor; and the processor itself, of PIL where there are two.

    Args:
        folder: is made.
        kind: of processor, without ImageProcessor.
        settings: of it.
    """
    transformers = pytest.importorskip("transformers")
    folder.mkdir()
    transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1).save_pretrained(folder)
    stated = {"image_processor_type": f"{kind}ImageProcessor", **settings}
    (folder / "preprocessor_config.json").write_text(json.dumps(stated))
    names = (f"{kind}ImageProcessorPil", f"{kind}ImageProcessor")
    processor = next(getattr(transformers, name) for name in names if hasattr(transformers, name))(**settings)
    return own_input(f"hf:{folder}"), partial(pixel_values, processor)


def pixel_values(processor: Any, image: PIL.Image.Image) -> Any:
    return processor(image, return_tensors="pt")["pixel_values"][0]


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("CLIP", {}),
        ("Bit", {"size": {"shortest_edge": 256}, "crop_size": {"height": 224, "width": 224}}),
        ("ViT", {}),
        ("Siglip", {"size": {"height": 256, "width": 256}}),
        ("DeiT", {}),
        ("ConvNext", {"size": {"shortest_edge": 224}, "crop_pct": 0.875}),
        ("ConvNext", {"size": {"shortest_edge": 384}}),
    ],
)
def test_the_input_of_a_hugging_face_folder_is_its_processors(
    tmp_path: Path, kind: str, settings: dict[str, Any]
) -> None:
    require_same_pixels(*of_a_folder(tmp_path / "model", kind, **settings))


@pytest.mark.parametrize("kind", ["Levit", "EfficientNet"])
def test_a_processor_that_does_more_than_it_states_is_not_known(tmp_path: Path, kind: str) -> None:
    assert of_a_folder(tmp_path / "model", kind)[0] is None

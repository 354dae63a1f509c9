from __future__ import annotations

import os
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from layerprobe.encoder import graph
from layerprobe.encoder.example import load_graph, load_onnx
from layerprobe.encoder.fitted_map import with_ends
from layerprobe.encoder.graph import Parts, record_graph, save_graph, save_onnx
from layerprobe.hooks import find_layers, measure_layers
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import InTurn
from layerprobe.system.errors import EnvironmentFault, LayerprobeError
from layerprobe.system.files import disk_faults_told
from tests.hooks.models import Layers


class Two(nn.Module):
    """Its first layer is overwritten in place, as by torchvision's ReLU; the second is never needed for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 40, 3)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.second(self.relu(self.first(images))).mean((2, 3)))


def normalise(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2) / 255


def parts_of(layer: str, chain: str = "none", *, invert: bool = False) -> Parts:
    torch.manual_seed(0)
    net = Layers(Two(), {"first": "first", "relu": "relu", "second": "second"})
    (found,) = find_layers([layer], measure_layers(net, 8))
    sizes = [hook.dim for hook in getattr(found, "members", [found])]
    train = torch.rand(30, sum(sizes)).double()
    post_process = parse_chain(chain).fit([train], sum(sizes), seed=0)
    finish = with_ends(post_process, sizes=sizes, similarity=parse_chain(chain).similarity or "cosine")
    return Parts(net.module.requires_grad_(False), found, normalise, invert, (8, 8, 3), finish)


def images(count: int = 5) -> Tensor:
    return torch.randint(0, 256, (count, 8, 8, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def expected(maps: Tensor) -> Tensor:
    """Maxima of a map at length 1."""
    return nn.functional.normalize(maps.amax((2, 3)))


def test_the_graph_gives_the_features_of_any_number_of_images() -> None:
    parts = parts_of("first@max")
    exported = record_graph(parts).module()
    for count in (1, 2, 5):
        wanted = expected(parts.net.get_submodule("first")(normalise(images(count))))
        torch.testing.assert_close(exported(images(count)), wanted, atol=1e-6, rtol=0)


def test_a_layer_is_taken_before_what_overwrites_it() -> None:
    exported = record_graph(parts_of("first@avg")).module()
    assert (exported(images()) < 0).any()  # the mean of what the ReLU would have raised to 0


def test_pixels_are_inverted_inside() -> None:
    plain, inverted = (record_graph(parts_of("first@max", invert=invert)).module() for invert in (False, True))
    torch.testing.assert_close(inverted(images()), plain(255 - images()), atol=0, rtol=0)


def test_weights_after_the_layer_are_left_out() -> None:
    program = record_graph(parts_of("relu@max"))
    assert {tensor.numel() for tensor in program.state_dict.values()} == {4, 4 * 3 * 3 * 3}


def test_gem_is_recorded_without_its_check() -> None:
    parts = parts_of("relu@gem")
    maps = parts.net.get_submodule("first")(normalise(images())).relu().clamp(min=1e-6)
    wanted = nn.functional.normalize((maps**3).mean((2, 3)) ** (1 / 3))
    torch.testing.assert_close(record_graph(parts).module()(images()), wanted, atol=1e-6, rtol=0)


def test_concatenated_layers_have_length_1_each() -> None:
    found = record_graph(parts_of("relu+second@max")).module()(images())
    torch.testing.assert_close(found[:, :4].norm(dim=1), torch.full((5,), 0.5**0.5))
    torch.testing.assert_close(found[:, 4:].norm(dim=1), torch.full((5,), 0.5**0.5))


@pytest.mark.parametrize("chain", ["layernorm+binary", "l2+float16", "first:30+int8"])
def test_files_give_the_numbers_of_the_network_and_the_map(chain: str, tmp_path: Path) -> None:
    parts = parts_of("second@avg", chain)
    program, given = record_graph(parts), images().numpy()
    save_graph(program, tmp_path / "model.pt2")
    save_onnx(program, tmp_path / "model.onnx")
    pooled = parts.pooled(images()).double()
    wanted = parts.finish(pooled).numpy()
    for encode in (load_graph(tmp_path / "model.pt2"), load_onnx(tmp_path / "model.onnx")):
        for count in (1, 5):
            found = encode(given[:count])
            assert found.dtype == wanted.dtype
            assert np.array_equal(found, wanted[:count])


def test_weights_that_no_onnx_file_can_hold_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = record_graph(parts_of("first@max"))
    monkeypatch.setattr(graph, "_MOST_ONNX", 400)
    with pytest.raises(LayerprobeError, match="Leave onnx out of --format"):
        save_onnx(program, tmp_path / "model.onnx")  # (4 * 27 + 4) * 4 = 448 bytes


class Odd(nn.Module):
    """Which path it takes depends on the images."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 4, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.first(images)
        return found if found.sum() > 0 else -found


def test_a_network_that_cannot_be_recorded_is_told() -> None:
    net = Layers(Odd(), {"first": "first"})
    (found,) = find_layers(["first@max"], measure_layers(net, 8))
    with pytest.raises(LayerprobeError, match="cannot record the network up to first@max: .*Add --format npz"):
        record_graph(Parts(net.module, found, normalise, False, (8, 8, 3), InTurn(())))


def test_a_disk_that_takes_no_more_is_told(tmp_path: Path) -> None:
    program = record_graph(parts_of("second@max"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(EnvironmentFault, match="larger than the 1,000 bytes"), disk_faults_told(tmp_path):
            save_graph(program, tmp_path / "model.pt2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_files_are_read_from_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    folder.mkdir()
    program = record_graph(parts_of("first@max"))
    save_graph(program, folder / "model.pt2")
    save_onnx(program, folder / "model.onnx")
    given = images(2).numpy()
    np.testing.assert_allclose(
        load_graph(folder / "model.pt2")(given), load_onnx(folder / "model.onnx")(given), atol=1e-6
    )

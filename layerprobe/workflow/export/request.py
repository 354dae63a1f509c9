"""What `layerprobe export` is asked for."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from layerprobe.encoder.manifest import is_export
from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.system.errors import EnvironmentFault, LayerprobeError, UnknownNameError
from layerprobe.system.files import require_writable
from layerprobe.values.indexes import IndexKind

NPZ, PT2, ONNX = FORMATS = ("npz", "pt2", "onnx")
_NEEDED = ("onnx", "onnxscript", "onnxruntime")  # by the format onnx; its check runs the file


@dataclass(frozen=True)
class ExportRequest:
    """A call of `layerprobe export`.

    Args:
        out: the folder to make.
        force: whether an export that is there is replaced.
        layer: LAYER[@pool][/reduction][~similarity]; None: what `choose` says.
        epoch: None: the last measured one, or the choice's.
        model: the run's network as the user names it.
        index: of the test images; None: none is written.
    """

    out: Path
    formats: tuple[str, ...] = (NPZ, PT2)
    force: bool = False
    layer: str | None = None
    epoch: int | None = None
    model: str | None = None
    index: IndexKind | None = None

    @property
    def with_network(self) -> bool:
        """Whether a file with the network is asked for."""
        return PT2 in self.formats or ONNX in self.formats

    def require_ready(self) -> None:
        """Check what can be checked before any work: formats, packages and the folder."""
        for name in self.formats:
            if name not in FORMATS:
                raise UnknownNameError("format", name, FORMATS)
        if ONNX in self.formats:
            for package in _NEEDED:
                if importlib.util.find_spec(package) is None:
                    raise EnvironmentFault(
                        f"--format onnx: {package} is not installed", fix="pip install 'layerprobe[export]'"
                    )
        if self.index is not None:
            import_faiss()
        require_free(self.out, force=self.force)


def require_free(out: Path, *, force: bool) -> None:
    """Check that a folder can be made, or is an export that may be replaced."""
    require_writable(out.absolute().parent, fix="Name another folder")
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir() or (any(out.iterdir()) and not is_export(out)):
        message = "it exists already and is not an export alone, so that --force does not replace it"
        raise LayerprobeError(message, file=out, fix="Name another folder")
    if not force:
        raise LayerprobeError(
            "it exists already", file=out, fix="Name another folder; layerprobe export --force replaces it"
        )

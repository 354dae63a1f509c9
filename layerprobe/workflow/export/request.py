"""What `layerprobe export` is asked for."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from layerprobe.system.errors import EnvironmentFault, LayerprobeError, UnknownNameError
from layerprobe.system.files import put_back, require_writable
from layerprobe.system.options import Flag, Memory, RunModel, split_names
from layerprobe.system.requirements import install_line
from layerprobe.values.costs import IndexKind, index_kinds

NPZ, PT2, ONNX = FORMATS = ("npz", "pt2", "onnx")
_NEEDED = ("onnx", "onnxscript", "onnxruntime")  # by the format onnx; its check runs the file


@dataclass(frozen=True)
class ExportRequest:
    """A call of `layerprobe export`.

    Args:
        out: the folder to make.
        memory: bytes that features may take while they are read; an index holds its own vectors or codes in memory.
    """

    out: Path
    formats: Annotated[
        tuple[str, ...],
        Flag(
            "Files: the map, the network in torch or ONNX.", name="--format", metavar="npz,pt2,onnx", parse=split_names
        ),
    ] = (NPZ, PT2)
    force: Annotated[bool, Flag("Replace an export that is there.")] = False
    layer: Annotated[
        str | None,
        Flag("Layer to export, LAYER[@pool][/post-processing] (default: what choose says).", metavar="LAYER"),
    ] = None
    epoch: Annotated[int | None, Flag("Epoch (default: the last measured, or the choice's).", metavar="N", min=0)] = (
        None
    )
    model: RunModel = None
    index: Annotated[
        IndexKind | None,
        Flag(
            "Also write a faiss index of the test images.",
            metavar="flat|ivfpq|hnsw",
            parse=lambda text: index_kinds([text])[0],
        ),
    ] = None
    memory: Memory = None

    @property
    def with_network(self) -> bool:
        """Whether a file with the network is asked for."""
        return PT2 in self.formats or ONNX in self.formats

    def require_ready(self) -> None:
        """Check what can be checked before any work: formats, packages and the folder."""
        from layerprobe.ranking.faiss_search import import_faiss

        for name in self.formats:
            if name not in FORMATS:
                raise UnknownNameError("format", name, FORMATS)
        if ONNX in self.formats:
            for package in _NEEDED:
                if importlib.util.find_spec(package) is None:
                    raise EnvironmentFault(f"--format onnx: {package} is not installed", fix=install_line("export"))
        if self.index is not None:
            import_faiss()
        require_free(self.out, force=self.force)


def require_free(out: Path, *, force: bool) -> None:
    """Check that a folder can be made, or is an export that may be replaced."""
    from layerprobe.encoder.manifest import is_export  # it imports numpy and pydantic

    require_writable(out.absolute().parent, fix="Name another folder")
    put_back(out)
    if not out.exists() and not out.is_symlink():
        return
    if out.is_symlink() or not out.is_dir() or (any(out.iterdir()) and not is_export(out)):
        message = "it exists already and is not an export alone, so that --force does not replace it"
        raise LayerprobeError(message, file=out, fix="Name another folder")
    if not force:
        raise LayerprobeError(
            "it exists already", file=out, fix="Name another folder; layerprobe export --force replaces it"
        )

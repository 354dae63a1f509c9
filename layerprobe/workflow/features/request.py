"""What `layerprobe features` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.options import Flag, split_names

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class FeaturesRequest:
    """A call of `layerprobe features`.

    Args:
        out: a .parquet, .npz or .csv file, or a stream for csv.
        layers: None: the embedding.
        epoch: None: the last.
    """

    run: "Run"
    out: Path
    layers: Annotated[
        tuple[str, ...] | None,
        Flag(
            "Layers, LAYER[@pool][/post-processing] (default: the embedding).", metavar="LAYER,...", parse=split_names
        ),
    ] = None
    split: Annotated[str, Flag("Split: train, validation or test.", metavar="SPLIT")] = "test"
    epoch: Annotated[int | None, Flag("Epoch (default: the last).", metavar="N", min=0)] = None

    def __post_init__(self) -> None:
        from layerprobe.workflow.run.outputs import require_output

        require_output(self.out, "parquet", "npz", "csv")
        if self.out.suffix.lower() == ".parquet":
            from layerprobe.sources.hub import import_package

            import_package("pyarrow", "datasets")

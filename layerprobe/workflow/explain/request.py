"""What `layerprobe explain` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag, RunModel, split_names

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class ExplainRequest:
    """A call of `layerprobe explain`.

    Args:
        layers: None: that of the stored choice and the embedding, or those of the rule.
        query: id of a test image.
        out: None: in the run's folder, where `report` finds it.
    """

    run: "Run"
    layers: Annotated[
        tuple[str, ...] | None,
        Flag(
            "Layers: LAYER[@pool][/post-processing] or a glob (default: the stored choice and the embedding).",
            metavar="LAYER,...",
            parse=split_names,
        ),
    ] = None
    query: Annotated[str | None, Flag("Image to explain (default: as plot panels chooses).", metavar="ID")] = None
    where: Annotated[
        str | None,
        Flag("Rule for choosing the query: 'LAYER right, LAYER wrong', worst, random or 'class NAME'.", metavar="RULE"),
    ] = None
    out: Annotated[
        Path | None, Flag("Write the figure to this .png, .pdf or .svg file, or to - (stdout).", metavar="FILE")
    ] = None
    model: RunModel = None

    def __post_init__(self) -> None:
        from layerprobe.workflow.run.outputs import require_output

        if self.query is not None and self.where is not None:
            raise RecipeError("--query and --where exclude each other", fix="Omit one of them")
        if self.out is not None:
            require_output(self.out, "png", "pdf", "svg")

"""What `layerprobe train` is asked for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.launch import Launch
from layerprobe.system.options import Device, Flag, Workers, split_names

if TYPE_CHECKING:
    from layerprobe.recipe.recipe import Recipe
    from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class TrainRequest:
    """A call of `layerprobe train`.

    Args:
        overridden: whether the command line changed the recipe; decides the run's name.
        probe: layer expressions; None for no probing.
        splits: those that are probed; None for all.
        launch: the processes that train together.
    """

    recipe: "Recipe"
    overridden: bool
    cache: Path
    run: Annotated[str | None, Flag("Name of the run (default: from the recipe).", metavar="NAME")] = None
    device: Device = "auto"
    workers: Workers = None
    fresh: Annotated[bool, Flag("Start over; an existing run of that name is kept as NAME~1.")] = False
    probe: Annotated[
        tuple[str, ...] | None, Flag("Probe these layers after every epoch.", metavar="LAYER,...", parse=split_names)
    ] = None
    splits: tuple[str, ...] | None = None
    launch: Launch = field(default_factory=Launch, compare=False)

    def target(self) -> "Run":
        """The run that this trains."""
        from layerprobe.workflow.run.runs import named_run, recipe_run

        if self.run is None and self.overridden:
            return recipe_run(self.cache, self.recipe)
        return named_run(self.cache, self.run or self.recipe.name)

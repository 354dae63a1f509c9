"""What `layerprobe classes` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.options import Flag, split_names
from layerprobe.values.classes import ORDERS, Order

_FIX = "Name the layer to switch to and the present one, such as pool5.3,fc6"


def _read_order(text: str) -> Order:
    for order in ORDERS:
        if text == order:
            return order
    raise UnknownNameError("order", text, ORDERS)


@dataclass(frozen=True)
class ClassesRequest:
    """A call of `layerprobe classes`.

    Args:
        layers: A and B; empty: what `choose` prefers, and the embedding.
        csv: file or stream for a row for each class; None writes none.
        confusions: file or stream for a row for each pair of classes; None writes none.
    """

    layers: Annotated[
        tuple[str, ...],
        Flag(
            "Switch to NEW from OLD (default: to what choose prefers, from the embedding).",
            metavar="NEW,OLD",
            parse=split_names,
        ),
    ] = ()
    order: Annotated[
        Order, Flag("Order of the classes.", name="--sort", metavar="|".join(ORDERS), default="loss", parse=_read_order)
    ] = "loss"
    csv: Annotated[Path | None, Flag("Also write every class to this .csv file, or to - (stdout).", metavar="FILE")] = (
        None
    )
    confusions: Annotated[
        Path | None, Flag("Also write every confused pair to this .csv file, or to - (stdout).", metavar="FILE")
    ] = None

    def __post_init__(self) -> None:
        if self.layers and len(self.layers) != 2:
            raise RecipeError(f"--layers {','.join(self.layers)}: two layers are compared", fix=_FIX)
        if self.csv is not None and self.csv == self.confusions:
            raise RecipeError(f"--csv and --confusions are both {self.csv}", fix="Name two files")

"""What `layerprobe threshold` is asked for."""

from dataclasses import dataclass
from typing import Annotated

from layerprobe.system.errors import RecipeError
from layerprobe.system.options import Flag, Memory, split_names
from layerprobe.values.thresholds import FALSE_ACCEPT_RATES

_FIX = "Write rates such as 1e-3,1e-2"


def _read_rates(text: str) -> tuple[float, ...]:
    """Read `1e-3,1e-2`, each rate once."""
    rates = []
    for name in split_names(text):
        try:
            rates.append(float(name))
        except ValueError:
            raise RecipeError(f"--far {name}: not a number", fix=_FIX) from None
    return tuple(dict.fromkeys(rates))


@dataclass(frozen=True)
class ThresholdRequest:
    """A call of `layerprobe threshold`.

    Args:
        layer: LAYER[@pool][/post-processing]; None: the layer that `choose` selects.
        rates: false accept rates, each between 0 and 1.
        cluster: whose values are the units of intervals, as of `compare`; None for the classes.
    """

    layer: Annotated[
        str | None, Flag("Layer, LAYER[@pool][/post-processing] (default: what choose says).", metavar="LAYER")
    ] = None
    rates: Annotated[
        tuple[float, ...],
        Flag(
            "False accept rates at which to set thresholds.",
            name="--far",
            metavar="RATE,...",
            default="1e-3,1e-2",
            parse=_read_rates,
        ),
    ] = FALSE_ACCEPT_RATES
    cluster: Annotated[
        str | None, Flag("Intervals over the values of a column (parent: folders), not classes.", metavar="COLUMN")
    ] = None
    memory: Memory = None

    def __post_init__(self) -> None:
        for rate in self.rates:
            if not 0 < rate < 1:
                raise RecipeError(f"--far {rate:g}: not a rate between 0 and 1", fix=_FIX)

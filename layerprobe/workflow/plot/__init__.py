"""Which stored values of runs a plot shows. Enter by `plot.plot`."""

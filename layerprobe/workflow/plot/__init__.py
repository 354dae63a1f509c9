"""Which figure shows the scores and features of runs. Enter by `plot.plot`."""

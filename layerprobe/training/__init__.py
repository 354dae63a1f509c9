"""How weights change from epoch to epoch. Enter by `loop.Trainer`."""

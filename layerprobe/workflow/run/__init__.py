"""A run's folder: lookup, record, lock, checkpoints and stored results. Enter by `runs.find_run`."""

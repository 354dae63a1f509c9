"""What is stored of a run, and how it is found, locked, read and built again. Enter by `runs.find_run`."""

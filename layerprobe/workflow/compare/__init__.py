"""By how much two layers differ on the same queries. Enter by `compare.compare`, for trainings by `compare_seeds`."""

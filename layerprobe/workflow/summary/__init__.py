"""What a run's epochs show of each layer. Enter by `summary.stored_summary`."""

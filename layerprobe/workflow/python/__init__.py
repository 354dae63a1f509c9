"""What is measured of a model and loaders in memory. Enter by `probe_model.probe`."""

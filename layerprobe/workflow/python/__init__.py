"""What is measured of a model that only Python holds. Enter by `probe_model.probe`."""

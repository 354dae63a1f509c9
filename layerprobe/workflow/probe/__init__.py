"""What is measured of each layer of a run's checkpoints. Enter by `probe.probe`."""

"""Where people keep the numbers of their runs: TensorBoard, Weights & Biases, MLflow, trackio.

`Trackers` gives an epoch's numbers, a figure or a file to each tracker that the user names, and reports what fails. A
tracker's package is imported when it is named.

Types and words: `Tracker`, `Trackers`.
"""

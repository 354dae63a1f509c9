"""How weights change from epoch to epoch. Enter by `loop.Trainer`.

Epochs, steps, optimisers, learning-rate schedules, warm-up, heating.

Types and words: `Trainer`, `Schedule`, `Plan`, `EpochResult`, `RowSGD`.
"""

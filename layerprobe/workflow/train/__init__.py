"""How a run is trained, built and estimated beforehand.

Enter by `train.train`; `ensemble` and `frozen` need no training.

Building from a recipe, training and resuming, ensembles and their members, frozen models (`--model`) and their
weights, estimates.

Types and words: `TrainRequest`, `FrozenRequest`, `Built`, `Member`; trainer, listener, plan, fresh.
"""

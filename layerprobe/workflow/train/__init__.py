"""How a run is trained, built and estimated beforehand.

Enter by `train.train_any`; `frozen` needs no training.

Building from a recipe, training and resuming a run or the members of an ensemble, probing an ensemble, frozen models
(`--model`) and their weights, estimates.

Types and words: `TrainRequest`, `FrozenRequest`, `Built`, `Member`; trainer, listener, plan, fresh.
"""

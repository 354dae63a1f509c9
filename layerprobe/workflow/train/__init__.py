"""How a run is trained, built and estimated beforehand.

Enter by `train.train`; `ensemble` and `frozen` need no training.
"""

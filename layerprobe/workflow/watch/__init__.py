"""What a training in anybody's loop is measured by at each epoch. Enter by `watch.Watch`.

`layerprobe.Watch`: the layers of a model at each epoch of any training, the images of a DataLoader or Subset that are
held, random state, its run; callbacks of Lightning and transformers.

Types and words: `Watch`, `WatchCallback`, `WatchedImages`, `WatchedNetwork`, `MeasuredEpoch`.
"""

"""Which network it is, and what its layers are called. Enter by `registry.NETS`: a name -> a builder of `Net`.

Backbones, heads, names and blocks of layers found among the children of modules, ImageNet and Caffe weights, foreign
checkpoints (shards and folders, safe unpickling, fitting their tensors to a network by prefix and shape or by its
library's conversion, merging adapters).

Types and words: `Net`, `Backbone`, `Head`, `Inception`, `FrozenBatchNorm`, `FileWeights`, `Fit`, `TargetNetwork`;
trunk, stages, convolution, tensors of a file.
"""

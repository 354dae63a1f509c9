"""Which numbers features give. Enter by `analysis`: features -> ranks -> `Score`; `extraction`: images -> features.

Features -> scores of a layer, matrices of CKA, histograms of similarities, exact thresholds and error rates of
genuine and impostor pairs, spectra, gradients of a softmax loss, recall by fold or without each unit, costs of
indexes; images -> features.

Types and words: `Features`, `InapplicablePostProcessing`, `EpochFeatures`, `SideBySide`, `QueryValues`, `FoldSearch`,
`Labelled`, `PairCounts`, `Searched`, `Classified`.
"""

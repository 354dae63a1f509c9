"""What is done to features before they are searched. Enter by `chain.parse_chain`: `pca:64+l2` -> `Chain`.

PCA, whitening, maps learned from classes, random projection, binary codes ... as chains fitted on training features a
batch at a time, whose fits are steps that can be exported.

Types and words: `Chain`, `PostProcessing`, `Moments`, `ClassMoments`, `Spectrum`, `PCA`, `FoldProjections`,
`Projection`, `SlicedRows`; covariance, directions.
"""

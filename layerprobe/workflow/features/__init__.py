"""features: the stored features of a run, with what is nearest to each image, as a table for other tools.

Vectors, classes, names and paths of the images of a split, the nearest neighbour of each and whether it is right; as
.parquet, .npz or .csv.

Types and words: `FeaturesRequest`, `FeatureTable`, `LayerColumns`.
"""

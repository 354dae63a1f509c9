"""What packages exchange: frozen values that open no file. Enter by the module of the value.

Frozen values that packages share, with what they are called and how they are worded: names of layers, for people too,
and their parsing, scores.csv, intervals and their kinds, run.json, ranks and search rules, facts and captions on a
data set, means over seeds, the best layer, a choice and its sentences, several models in one table, thresholds, costs
of indexes, explanations, what figures draw (curves, histograms, neighbours), sizes of images, a model's own input,
a recipe's sections and defaults.

Types and words: `RankedLayer`, `LayerKey`, `Score`, `RunRecord`, `Retrieval`, `SearchRules`, `DataFacts`, `Interval`,
`IntervalKind`, `SamplingUnits`, `OverSeeds`, `Choice`, `ModelTable`, `SelectedLayer`, `Gain`, `Certainty`, `ImageCost`,
`Best`, `Agreement`, `Curve`, `PlaneFeatures`, `GradientSizes`, `QueryNeighbours`, `Explanation`, `Threshold`,
`IndexCosts`, `OwnInput`, `Problem`, `Section`.
"""

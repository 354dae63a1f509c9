"""explain: why a query of a run and its nearest neighbours are similar, from its images and weights.

A query of a run and its nearest neighbour by each layer, explained by the run's weights; the network with random
weights; the figure that the run keeps.

Types and words: `ExplainRequest`.
"""

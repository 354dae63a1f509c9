"""Which numbers a `Retrieval` gives. Enter by `registry.SHARE_METRICS` and `registry.PLAIN_METRICS`.

Recall@K, MAP@R, NMI (k-means), kNN votes, few-shot prototypes, hubness, effective rank, CKA, R@K in thinned galleries
...: `Retrieval` -> numbers, or contributions of queries.

Types and words: `Metric`, `QueryMetric`, `Clustering`, `Prototypes`, `WeightedVotes`; centroids, restarts, scatter.
"""

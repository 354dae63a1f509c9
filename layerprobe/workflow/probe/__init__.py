"""What is measured of each layer of a run's checkpoints. Enter by `probe.probe`.

Measuring a run: request and refusals, selection of layers, epochs (all, last, best) and K, extraction, searches,
post-processing fitted once, scoring, intervals, classifier, time estimate; ranking again from stored features, with
refits by fold.

Types and words: `ProbeRequest`, `Selection`, `Probing`, `ProbedRun`, `Extractor`, `Searches`, `StoredSearch`,
`PostProcessedFeatures`, `Scorer`, `Measures`.
"""

"""By how much two layers differ on the same queries. Enter by `compare.compare`, for trainings by `compare_seeds`.

Two layers on the same queries: pairs, evidence, trainings, corrected p values, sentences and tables; findings, such
as the best on validation or the layer before the embedding against the embedding; a run beside a paper's table.

Types and words: `PaperComparison`, `Comparison`, `SeedComparison`, `ComparedLayer`, `ComparisonData`, `Evidence`,
`Measure`, `FindingInputs`, `Findings`.
"""

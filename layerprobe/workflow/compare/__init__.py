"""By how much two layers differ on the same queries. Enter by `compare.compare`.

Two layers on the same queries: pairs, evidence, trainings, corrected p values, sentences and tables; findings, such
as the best on validation or the layer before the embedding against the embedding; the answer of a probe; a run beside a
paper's table.

Types and words: `CompareRequest`, `Comparison`, `ComparedTrainings`, `ComparedLayer`, `ComparisonData`, `Evidence`,
`FindingInputs`, `Findings`, `PaperComparison`.
"""

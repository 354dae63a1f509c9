"""Which stored values of runs a plot shows. Enter by `plot.plot`.

The stored values of each plot: matrices of CKA, histograms and spectra, dimensions, gallery sizes, error rates,
training losses, what a loss has learnt, features in two dimensions, gradients; lines of runs by the keys of their
recipes, with means over trainings; panels with rules for queries, neighbours and shrunk images.

Types and words: `PlotRequest`, `StoredRuns`, `PlottedRun`, `TrainingScores`, `RunLayers`, `LayerSelection`,
`ChosenQueries`, `WorstQueries`, `RandomQueries`.
"""

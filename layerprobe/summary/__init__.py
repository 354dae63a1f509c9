"""Recalls of all epochs -> gap, gain and best epoch of each layer: `layers.layer_summaries`.

Recalls of all epochs -> gap, gain over epoch 0, post-processing, cells of each layer and epoch, best and last epoch,
and their table.

Types and words: `RunSummary`, `LayerSummary`, `LayerEpoch`, `Processing`, `GapOnset`, `Level`, `SplitCells`,
`PostProcessedSection`.
"""

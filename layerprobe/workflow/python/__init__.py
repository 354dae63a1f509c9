"""What is measured of a model and loaders in memory. Enter by `probe_model.probe`.

`layerprobe.probe`, `extract`, `layers`, `explain`: a module and loaders in memory, their batches and features; the
result by split and layer, what it chooses, compares and reports; the run that keeps it.

Types and words: `Probed`, `ByLayer`, `ProbeInputs`, `MemoryFeatures`, `MemoryProbe`, `SearchResults`, `Batch`.
"""

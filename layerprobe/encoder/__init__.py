"""The exported encoder, images -> features of a layer: its graph, its map as arrays, its files, loading, checks.

A network cut after a layer as a graph (torch.export, ONNX), a fitted map as numpy arrays, export.json and its hashes,
loading, agreement of files with the probe; example.py, which is copied beside them.

Types and words: `Parts`, `FittedMap`, `LoadedEncoder`, `CheckSamples`; steps, nodes, opset.
"""

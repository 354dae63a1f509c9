"""The exported encoder, images -> features of a layer: its graph, its map as arrays, its files, loading, checks."""

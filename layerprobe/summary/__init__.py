"""Recalls of all epochs -> gap, gain and best epoch of each layer: `layers.layer_summaries`."""

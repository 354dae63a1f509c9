"""What recalls of all epochs show of a layer: gap, gain and the epochs that matter.

Enter by `layers.layer_summaries`.
"""

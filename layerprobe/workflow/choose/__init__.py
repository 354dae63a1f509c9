"""Which layer should be used, with which post-processing.

Enter by `choose.choose_runs`, `choose_model` or `choose_features.choose`.
"""

"""What a run's epochs show of each layer. Enter by `summary.stored_summary`.

A run's stored ranks -> the values of `summary/`: units, best epoch, the thinned gallery and why there is none.

Types and words: `SummaryRequest`, `Thinning`.
"""

"""Which layer should be used, with which post-processing.

Enter by `choose.choose_runs`, `choose_once.choose_model`, `choose_models.choose_models` or `choose_features.choose`.

Candidates of runs, of a model or of arrays (.npz, .npy, .pt, .h5), their hits by class and fold, refits by fold,
costs, which is selected, indexes of it; several models in one table; whether the stored choice answers a request.

Types and words: `ChooseRequest`, `CandidateRun`, `StoredValues`, `Candidate`, `Candidates`, `UserFeatures`,
`Refits`, `ListedModel`; CandidateKey.
"""

"""A run's folder: lookup, record, lock, checkpoints and stored results. Enter by `runs.find_run`.

What verbs share of a run's folder: lookup, lock, run.json, checkpoints, kept and damaged epochs, adding to and
reading stored features, references such as `netA#20:fc6`, trainings paired by seed, experiments, units and clusters
of queries, whether classes were seen, the embedding, the stored choice, building data set and network from a recipe.

Types and words: `Run`, `MemoryRun`, `OpenedRun`, `Reference`, `RankedSplit`, `Trainings`, `Experiments`, `RunFeatures`,
`Conditions`, `Decoding`, `StoredChoice`, `RunState`.
"""

"""Which trainings a study needs, and the table or figure that it ends in. Enter by `study.run_study`.

A study's file, the cells of its variants and grid and the trainings they need, with the folders of their data, which
are finished, processes that train several at once, its table. A search tunes the variants first: `search.run_search`.

Types and words: `Study`, `Variant`, `StudyRequest`, `Cell`, `StudyTraining`, `Over`, `StudyTable`, `Search`, `Trial`,
`Selected`, `SearchTable`; grid, seeds, jobs, budget, regret.
"""

"""Which trainings a study needs, and the table or figure that it ends in. Enter by `study.run_study`.

A study's file, the cells of its variants and grid and the trainings they need, with the folders of their data, which
are finished, processes that train several at once, its table.

Types and words: `Study`, `Variant`, `StudyRequest`, `Cell`, `StudyTraining`, `Over`, `StudyTable`; grid, seeds, jobs.
"""

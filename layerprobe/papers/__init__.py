"""What the five papers print: their tables of results, one TOML file a paper. Enter by `tables.find_table`.

The five papers' tables of results as printed (TOML), with the recipe of each row and the known errors.

Types and words: `PaperTable`, `PaperRow`, `PaperColumn`, `PaperCell`.
"""

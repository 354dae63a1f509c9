"""Cells -> tables: `tables.TextTable`, and `formats` for a terminal, a notebook, Markdown, LaTeX or csv.

Cells -> text for a terminal, a notebook, Markdown, LaTeX, csv; tables of scores.

Types and words: `TextTable`, `PrintedTables`; headings, columns, the star of the best, percent.
"""

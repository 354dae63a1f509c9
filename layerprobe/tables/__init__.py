"""Cells -> what people read as a table.

Enter by `tables.TextTable`; `formats` writes one for a terminal, a notebook, Markdown, LaTeX or csv.
"""

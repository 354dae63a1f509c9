"""Cells -> tables: `tables.TextTable`, and `formats` for a terminal, a notebook, Markdown, LaTeX or csv."""

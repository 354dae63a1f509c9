"""Which experiment is meant. Enter by `recipe.load_recipe`: a TOML file -> a checked, frozen `Recipe`.

TOML -> a checked, frozen `Recipe`; `--set`; all contradictions of keys at once.

Types and words: `Recipe`, `Overrides`, `Change`; sections, keys, near misses.
"""

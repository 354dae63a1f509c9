"""layers, data, cache, doctor and demo: enter by the module of the command.

What is listed or looked after: layers, data sets, cache, doctor (packages, disk), demo.

Types and words: `Check`, `LayerRow`, `Checked`, `DecodedImages`, `Demo`.
"""

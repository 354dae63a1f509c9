"""Which test classes lose by another layer, and which are found in place of which?

Two layers by class, from stored ranks, and the nearest items that are wrong, from stored features; their tables.

Types and words: switch, lose, confusion, one class under two names.
"""

"""Errors, atomic writes, memory, signals, threads, progress and wording; enter by the module of that name."""

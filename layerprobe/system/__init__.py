"""Errors, atomic writes, memory, signals, threads, progress and wording; enter by the module of that name.

Errors and exit codes, atomic writes, links and descriptors, free disk space and memory, signals, threads, progress,
wording of sizes and times, JSON encoding, the external models that the user named, fields of requests as flags,
tensors to and from a device, how to install an extra.

Types and words: `LayerprobeError`, `UnknownNameError`, `NamedFile`, `Listener`, `Task`, `Flag`.
"""

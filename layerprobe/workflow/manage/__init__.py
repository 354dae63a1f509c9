"""layers, data, cache, doctor and demo: enter by the module of the command."""

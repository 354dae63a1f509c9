"""What a training minimises, one module a family of papers. Enter by `registry.LOSSES`."""

"""Which images there are, of which class and split, and how they become batches. Enter by `spec.DatasetSpec.load`."""

"""Which numbers a `Retrieval` gives. Enter by `registry.SHARE_METRICS` and `registry.PLAIN_METRICS`."""

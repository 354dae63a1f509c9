"""Which network it is, and what its layers are called. Enter by `registry.NETS`: a name -> a builder of `Net`."""

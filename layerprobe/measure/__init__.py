"""Which numbers features give. Enter by `analysis`: features -> ranks -> `Score`; `extraction`: images -> features."""

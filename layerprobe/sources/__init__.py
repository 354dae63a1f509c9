"""How a model of another library or of the user's file becomes a `Net`. Enter by `source.Source.build`."""

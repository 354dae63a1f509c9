"""How a model of another library or of the user's file becomes a `Net`. Enter by `source.Source.build`.

Timm, Hugging Face, open_clip, torchvision and a user's Python file -> `Net`; their configurations, tags, processors
and package versions; downloads.

Types and words: `Source`, `Foreign`, `Readout`, `VisionTower`, imported.
"""

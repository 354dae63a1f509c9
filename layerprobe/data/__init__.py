"""Which images there are, of which class and split, and how they become batches. Enter by `spec.DatasetSpec.load`.

Data sets: annotation files, csv tables and lists, splits and which classes and images they lack, formats and endings
that are read, class subsets, tables of images (parquet, Arrow, tar shards), drawn glyphs, digits, hashes of images,
decoding and the pixel cache and its readers, transforms, framing, resizing, batches, worker processes.

Types and words: `Dataset`, `Split`, `DatasetSpec`, `Annotations`, `ImageTable`, `TableImage`, `TarImage`,
`TableFormat`, `OfficialSet`, `UnreadFiles`, `Files`, `DecodedPixels`, `PairList`, `Normalise`; root, folder, box, PIL,
pixels, digest, fingerprint.
"""

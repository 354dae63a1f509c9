"""export: a chosen layer with its post-processing -> a folder of files that compute it.

The layer of a run, or of a user's features, that is exported: named or chosen, its network and map, images to check
it on; the folder.

Types and words: `ExportRequest`, `Exported`, `Written`, `LayerOfRun`.
"""

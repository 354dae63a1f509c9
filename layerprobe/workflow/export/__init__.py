"""export: a chosen layer with its post-processing -> a folder of files that compute it."""

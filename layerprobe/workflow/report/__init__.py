"""Which values the page of some runs shows. Enter by `report.write_report`; `watch_report` rewrites it as they grow.

The runs of a page, their choices, its galleries (queries by rules, neighbours at every epoch, pictures), classes and
confusions, provenance, watching for changes.

Types and words: `ReportRequest`, `Galleries`, `Choices`.
"""

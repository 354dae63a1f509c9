"""Which values the page of some runs shows. Enter by `report.build_report`; `report_watch` rewrites it as they grow.

The runs of a page, their choices, its galleries (queries by rules, neighbours at every epoch, pictures), provenance,
watching for changes.

Types and words: `Galleries`, `Choices`.
"""

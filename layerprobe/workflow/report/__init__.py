"""Which values the page of some runs shows. Enter by `report.build_report`; `report_watch` rewrites it as they grow."""

"""What stands on the page of some runs. Enter by `report.made_report`; `report_watch` writes it anew as they grow."""

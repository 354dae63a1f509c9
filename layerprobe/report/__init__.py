"""How the page of a report is written: values -> one HTML file without links. Enter by `page.render`."""

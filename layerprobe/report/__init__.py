"""The report: one HTML file of what is stored of some runs, that opens without a network."""

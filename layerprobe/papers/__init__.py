"""What the five papers print: their tables of results, one TOML file a paper. Enter by `tables.find_table`."""

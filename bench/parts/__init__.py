"""One module per kind of measurement. Each takes an arena and a scale and gives rows for the results."""

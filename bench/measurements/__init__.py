"""One module per kind of measurement. Each takes an testbed and a scale and gives rows for the results."""

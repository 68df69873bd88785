"""One module per kind of measurement. Each takes a testbed and a scale and returns rows for the results."""

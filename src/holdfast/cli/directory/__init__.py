"""`holdfast directory`: who owns what, and the way out."""

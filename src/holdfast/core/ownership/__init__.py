"""Ownership: consumers that keep keys for hours."""

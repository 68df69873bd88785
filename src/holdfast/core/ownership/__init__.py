"""The ownership package."""

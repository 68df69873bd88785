"""The limit package."""

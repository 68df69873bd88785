"""The queue package."""

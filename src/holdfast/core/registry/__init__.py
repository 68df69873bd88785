"""The registry package."""

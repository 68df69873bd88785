"""The once package."""

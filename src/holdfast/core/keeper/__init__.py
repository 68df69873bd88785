"""The keeper package."""

"""The build package."""

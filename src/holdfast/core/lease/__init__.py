"""The lease package."""

"""Integrations with other software, each behind an extra. Programs import only those that they use."""

"""Integrations with other software, each behind an extra or in its own wheel. Programs import only what they use."""

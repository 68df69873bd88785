"""Rate limits and budgets."""

"""The law as pure functions: no clock, no input, no output."""

from __future__ import annotations

from holdfast.rules.lease import RULES, Moment, Record, Step, forget_at_us

__all__ = ["RULES", "Moment", "Record", "Step", "forget_at_us"]

"""The law as pure functions: no clock, no input, no output."""

from __future__ import annotations

from holdfast.rules.lease import RULES, Step, forget_at_us
from holdfast.rules.record import Moment, Record

__all__ = ["RULES", "Moment", "Record", "Step", "forget_at_us"]

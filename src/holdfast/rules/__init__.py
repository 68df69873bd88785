"""The law as pure functions: no clock, no input, no output."""

from __future__ import annotations

from holdfast.rules.counters import COUNTER_RULES
from holdfast.rules.lease import RULES, Step, forget_at_us
from holdfast.rules.lease_record import Moment, Record

__all__ = ["COUNTER_RULES", "RULES", "Moment", "Record", "Step", "forget_at_us"]

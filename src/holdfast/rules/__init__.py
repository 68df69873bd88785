"""The rules: pure functions that decide every answer, without a clock or I/O.

`table.RULES` maps each command to its rule.
"""

from __future__ import annotations

from holdfast.rules.lease import Step, forget_at_us
from holdfast.rules.lease_record import Moment, Record

__all__ = ["Moment", "Record", "Step", "forget_at_us"]

"""A guard for your own resource: the rule and the newest stamp, without any I/O.

The guard has no lock. Call `admit` inside the lock, transaction or task that makes the write of the resource one step;
otherwise a newer holder may write in between.
"""

from __future__ import annotations

from holdfast.clock import SYSTEM
from holdfast.names import checked_name
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, admitted, stamp_of


class Guard:
    """The guard of one resource.

    `name`: the resource, for error messages. `newest`: the stamp that was stored with the resource; store the
    attribute `newest` with it after each write.
    """

    def __init__(self, name: str, newest: Stamp = UNSEEN) -> None:
        self.name = checked_name(name)
        self.newest = newest if newest == UNSEEN else stamp_of(newest, SYSTEM.wall_us())

    def admit(self, lease: Bearer) -> None:
        """Record the fence of `lease`; raise `Fenced` if a newer holder was here. Then write, in the same step."""
        self.newest = admitted(self.name, self.newest, stamp_of(lease, SYSTEM.wall_us()))

    def __repr__(self) -> str:
        return f"<guard of {self.name!r}, newest fence {self.newest.fence}>"

"""The blocking face: for threads. `holdfast.aio` has the same names, awaited."""

from holdfast.blocking.budget import Budget, Reservation
from holdfast.blocking.client import Holdfast, connect
from holdfast.blocking.leader import Leader, Term
from holdfast.blocking.lease import Lease, Signal
from holdfast.blocking.limit import Limiter
from holdfast.blocking.lock import Lock

__all__ = ["Budget", "Holdfast", "Leader", "Lease", "Limiter", "Lock", "Reservation", "Signal", "Term", "connect"]

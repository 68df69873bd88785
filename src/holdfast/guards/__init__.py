"""The other half of a fence: resources that refuse late writers.

A guard remembers the newest fence that came, with its token, beside what it protects. It accepts a newer one, or the
same again, and refuses the rest with `Fenced`, in one step with the write. The connection, the client or the file is
the caller's own. `holdfast.aio.guards` has the same names, awaited.
"""

from holdfast.guards.files import FileGuard
from holdfast.guards.own import Guard
from holdfast.guards.redis import RedisGuard
from holdfast.guards.sql import RowGuard, SqlGuard
from holdfast.rules.guard import Bearer, Stamp

__all__ = ["Bearer", "FileGuard", "Guard", "RedisGuard", "RowGuard", "SqlGuard", "Stamp"]

"""Guards: resources that check the fencing token of a writer and refuse an outdated one.

A guard stores the newest fence and its token beside the resource that it protects. It accepts a newer fence, or the
same one again, and refuses an older one with `Fenced`, in one step with the write. The caller brings the connection,
the client or the file. `holdfast.aio.guards` has the same names, awaited.
"""

from holdfast.guards.custom import Guard
from holdfast.guards.files import FileGuard
from holdfast.guards.redis import RedisGuard
from holdfast.guards.sql import RowGuard, SqlGuard
from holdfast.rules.guard import Bearer, Stamp

__all__ = ["Bearer", "FileGuard", "Guard", "RedisGuard", "RowGuard", "SqlGuard", "Stamp"]

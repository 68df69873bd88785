"""Guards for asyncio: the names and signatures of `holdfast.guards`, as coroutines.

The resource may have applied a cancelled call, like any command that was sent. A cancelled call that runs in a thread
still waits for the thread, so that the write cannot overtake the holder's next write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.aio.cancellation import finish_in_thread
from holdfast.clock import SYSTEM
from holdfast.guards import Bearer, Guard, Stamp, files, redis, sql
from holdfast.guards.sql_connections import execute_awaited
from holdfast.rules.guard import stamp_of

if TYPE_CHECKING:
    import os

    from holdfast.clock import Seconds

__all__ = ["Bearer", "FileGuard", "Guard", "RedisGuard", "RowGuard", "SqlGuard", "Stamp"]


class RedisGuard(redis.KeyRules):
    """Like `holdfast.guards.RedisGuard`; `client` is your client of `redis.asyncio` or `valkey.asyncio`."""

    def __init__(self, client: Any, key: str) -> None:
        super().__init__(client, key, awaited=True)

    async def set(self, lease: Bearer, value: redis.Argument) -> None:
        """Store `value`, or raise `Fenced` if a newer holder than `lease` has already written."""
        await self.run(lease, ("SET", self.key, value))

    async def delete(self, lease: Bearer) -> bool:
        """Remove the key, or raise `Fenced` if `lease` is outdated; return whether the key existed."""
        return await self.run(lease, ("DEL", self.key)) == [1]

    async def hset(self, lease: Bearer, fields: Mapping[str, redis.Argument]) -> int:
        """Store `fields` of a hash, or raise `Fenced` if `lease` is outdated; return how many are new."""
        return int((await self.run(lease, redis.hash_command(self.key, fields)))[0])

    async def hdel(self, lease: Bearer, *fields: str) -> int:
        """Remove `fields` of a hash, or raise `Fenced` if `lease` is outdated; return how many existed."""
        return int((await self.run(lease, ("HDEL", self.key, *fields)))[0])

    async def admit(self, lease: Bearer) -> None:
        """Record the fence of `lease` before its holder reads: from now on no older holder can change the key."""
        await self.run(lease)

    async def run(self, lease: Bearer, *commands: redis.Command, keys: Sequence[str] = ()) -> list[Any]:
        """Run `commands` in one step and return the server's answers, or raise `Fenced` and run none.

        `lease`: its fence is compared. `keys`: the other keys that the commands use, all with the hash tag of the
        guarded key.
        """
        call = self._call(lease, commands, keys)
        return redis.interpret(call, await self._script(keys=call.keys, args=call.args))

    async def newest(self) -> Stamp:
        """Return the newest stamp; fence 0 if there is none."""
        return redis.stored(await self._client.hmget(self.stamp_key, "fence", "token"))


class AwaitedStamps(sql.StampRules):
    """The methods that execute the statements, as coroutines."""

    async def admit(self, lease: Bearer, connection: Any, key: Any) -> None:
        """Record the fence of `lease` for `key` in the transaction of `connection`, or raise `Fenced`."""
        stamp = stamp_of(lease, SYSTEM.wall_us())
        statement = self._admitting(stamp, key)
        sql.check_stamp(statement, stamp, await execute_awaited(connection, statement.sql, statement.values))

    async def newest(self, connection: Any, key: Any) -> Stamp:
        """Return the newest stamp of `key`, read through `connection`; fence 0 if there is none."""
        statement = self._looking(key)
        return sql.newest_of(await execute_awaited(connection, statement.sql, statement.values, writes=False))


class SqlGuard(AwaitedStamps, sql.TableRules):
    """Like `holdfast.guards.SqlGuard`, with an asyncio connection of psycopg, aiosqlite or SQLAlchemy."""


class RowGuard(AwaitedStamps, sql.RowRules):
    """Like `holdfast.guards.RowGuard`, with an asyncio connection."""


class FileGuard:
    """Like `holdfast.guards.FileGuard`, in a thread, so that it does not block the event loop.

    `path`, `timeout`: as in `holdfast.guards.FileGuard`.
    """

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds | None = 10.0) -> None:
        self._guard = files.FileGuard(path, timeout=timeout)
        self.path = self._guard.path

    async def write(self, lease: Bearer, content: bytes | str) -> None:
        """Replace the file by `content`, or raise `Fenced` if a newer holder than `lease` has already written."""
        await finish_in_thread(self._guard.write, lease, content)

    async def delete(self, lease: Bearer) -> None:
        """Remove the file, if it exists, or raise `Fenced` if `lease` is outdated."""
        await finish_in_thread(self._guard.delete, lease)

    async def admit(self, lease: Bearer) -> None:
        """Record the fence of `lease` before its holder reads: from now on no older holder can change the file."""
        await finish_in_thread(self._guard.admit, lease)

    async def newest(self) -> Stamp:
        """Return the newest stamp; fence 0 if there is none."""
        return await finish_in_thread(self._guard.newest)

    def __repr__(self) -> str:
        return repr(self._guard)

"""Guards for programs of asyncio: the names and shapes of `holdfast.guards`, awaited.

A call that was cancelled may have been applied, as any that was sent. What runs in a thread is waited for all the
same, so that it cannot overtake what the holder does next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.aio.cancellation import settled
from holdfast.guards import Bearer, Guard, Stamp, files, redis, sql
from holdfast.guards.drivers import ask_awaited
from holdfast.rules.guard import stamp_of

if TYPE_CHECKING:
    import os

    from holdfast.clock import Seconds

__all__ = ["Bearer", "FileGuard", "Guard", "RedisGuard", "RowGuard", "SqlGuard", "Stamp"]


class RedisGuard(redis.KeyRules):
    """Guards one key, through a client of `redis.asyncio` or `valkey.asyncio` that you have."""

    def __init__(self, client: Any, key: str) -> None:
        super().__init__(client, key, awaited=True)

    async def set(self, lease: Bearer, value: redis.Word) -> None:
        await self.run(lease, ("SET", self.key, value))

    async def delete(self, lease: Bearer) -> bool:
        return await self.run(lease, ("DEL", self.key)) == [1]

    async def hset(self, lease: Bearer, fields: Mapping[str, redis.Word]) -> int:
        return int((await self.run(lease, redis.hash_command(self.key, fields)))[0])

    async def hdel(self, lease: Bearer, *fields: str) -> int:
        return int((await self.run(lease, ("HDEL", self.key, *fields)))[0])

    async def admit(self, lease: Bearer) -> None:
        await self.run(lease)

    async def run(self, lease: Bearer, *commands: redis.Command, keys: Sequence[str] = ()) -> list[Any]:
        call = self._call(lease, commands, keys)
        return redis.told(call, await self._script(keys=call.keys, args=call.args))

    async def newest(self) -> Stamp:
        return redis.stored(await self._client.hmget(self.stamp_key, "fence", "token"))


class Asked(sql.StampRules):
    """The awaited way to ask."""

    async def admit(self, lease: Bearer, connection: Any, key: Any) -> None:
        stamp = stamp_of(lease)
        question = self._admitting(stamp, key)
        sql.judge(question, stamp, await ask_awaited(connection, question.sql, question.values))

    async def newest(self, connection: Any, key: Any) -> Stamp:
        question = self._looking(key)
        return sql.newest_of(await ask_awaited(connection, question.sql, question.values, writes=False))


class SqlGuard(Asked, sql.TableRules):
    """Guards whatever you name, through a connection of asyncio: psycopg's, aiosqlite's or one of SQLAlchemy's."""


class RowGuard(Asked, sql.RowRules):
    """Guards the rows of a table of yours, through a connection of asyncio."""


class FileGuard:
    """Guards a file, from a thread: the loop goes on meanwhile."""

    def __init__(self, path: str | os.PathLike[str], *, timeout: Seconds | None = 10.0) -> None:
        self._guard = files.FileGuard(path, timeout=timeout)
        self.path = self._guard.path

    async def write(self, lease: Bearer, content: bytes | str) -> None:
        await settled(self._guard.write, lease, content)

    async def delete(self, lease: Bearer) -> None:
        await settled(self._guard.delete, lease)

    async def admit(self, lease: Bearer) -> None:
        await settled(self._guard.admit, lease)

    async def newest(self) -> Stamp:
        return await settled(self._guard.newest)

    def __repr__(self) -> str:
        return repr(self._guard)

"""The table of all scripts, and the packer: from a command to the bytes that are sent.

A client calls a script by its hash, and sends the text to a server that does not know the script. The packer caches the
bytes of a command that never change.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast.commands import WAITABLE, Acquire, Borrow, Hit
from holdfast.engines.redis import counters, lease, pool, queue, registry
from holdfast.engines.redis.keys import record_key
from holdfast.engines.redis.resp import bulk, bulk_of, packed, repeated

if TYPE_CHECKING:
    from holdfast.commands import AcquireCommand, Command
    from holdfast.engines.redis.script import Script

SCRIPTS: dict[type, Script] = {
    **lease.SCRIPTS,
    **pool.SCRIPTS,
    **registry.SCRIPTS,
    **counters.SCRIPTS,
    **queue.SCRIPTS,
}

# The argument about waiting: not at all, by a published wake-up, or by a blocking pop.
_NO_WAIT, _PUBLISHED, _POPPED = bulk("0"), bulk("1"), bulk("2")


class Packer:
    """Packs the commands of one client.

    With `slots` it declares a second key, which never exists. A cluster then refuses every command on a name whose slot
    is moving to another server before the script begins, because some of its keys may be here and some there. With
    `record_only` it declares the record twice instead, for commands that the record alone can decide wherever it is.
    """

    def __init__(self, prefix: str, client: str, memory_ms: int, *, slots: bool = False) -> None:
        self.prefix = prefix
        self.channel = f"{prefix}:wake:{client}"
        client_arguments = bulk(self.channel) + bulk(str(memory_ms))
        count = 2 if slots else 1

        # Most clients use few names, over and over.
        @lru_cache(maxsize=512)
        def head(kind: type, name: str, record_only: bool) -> bytes:
            key = record_key(prefix, name)
            second = bulk(key if record_only else f"{key}:-") if slots else b""
            return SCRIPTS[kind].head(count) + bulk(key) + second + client_arguments

        # A lock is acquired and released over and over: only the token is new in every command.
        @lru_cache(maxsize=512)
        def around_token(name: str, holder: str, ttl_ms: int, wait: bytes, record_only: bool) -> tuple[bytes, bytes]:
            return head(Acquire, name, record_only), b"\r\n" + bulk(holder) + bulk(str(ttl_ms)) + wait

        # A rate limit checks the same keys with the same arguments over and over.
        @lru_cache(maxsize=1024)
        def hit(command: Hit) -> bytes:
            return self._pack_all(SCRIPTS[Hit], command, with_text=False)

        self._hit = hit
        self._head = head
        self._around_token = around_token
        self._client_arguments = (self.channel, str(memory_ms))
        self._keys = count

    def pack(
        self, command: Command, *, with_text: bool = False, pops: bool = False, record_only: bool = False
    ) -> bytes:
        """Return the bytes of a command.

        `with_text` sends the text of the script, for a server that does not know it. `pops` is for a waiter that will
        block on the server instead of listening for its wake-up.
        """
        kind = type(command)
        if kind is Acquire:
            acquire: Any = command
            name, token, holder, ttl_ms, waits = acquire
            wait = _POPPED if pops else _PUBLISHED if waits else _NO_WAIT
            before, after = self._around_token(name, holder, ttl_ms, wait, record_only)
            text = b"%b$%d\r\n%b%b" % (before, len(token), token.encode(), after)
        else:
            script = SCRIPTS[kind]
            if script.count is None:
                return (
                    self._hit(command)
                    if kind is Hit and not with_text
                    else self._pack_all(script, command, with_text=with_text)
                )
            text = self._head(kind, command.name, record_only) + script.arguments(command)  # type: ignore[arg-type]
            if kind in WAITABLE:
                text += _POPPED if pops else _PUBLISHED if command.wait else _NO_WAIT  # type: ignore[union-attr]
        if with_text:
            script = SCRIPTS[kind]
            text = script.head(self._keys, with_text=True) + text.removeprefix(script.head(self._keys))
        return text

    def _pack_all(self, script: Script, command: Any, *, with_text: bool) -> bytes:
        """Pack a command with any number of arguments, which may be bytes."""
        key = record_key(self.prefix, command.name)
        if script.counter:
            keys = 1
            arguments = (f"{key}:{command.kind}", *script.arguments(command))
        elif self._keys == 1:
            keys = 1
            arguments = (key, *self._client_arguments, *script.arguments(command))
        else:
            keys = 2
            arguments = (key, f"{key}:-", *self._client_arguments, *script.arguments(command))
        head = b"*%d\r\n%b%b" % (3 + len(arguments), script.call(with_text=with_text), repeated(keys))
        return head + b"".join(map(bulk_of, arguments))

    def pack_pop(self, command: AcquireCommand, seconds: float) -> bytes:
        """Pack a command that blocks until a script pushes this waiter's wake-up, for at most that many seconds."""
        base = record_key(self.prefix, command.name) + (f":{command.kind}" if isinstance(command, Borrow) else "")
        return packed("BLPOP", f"{base}:wakeup:{command.token}", f"{seconds:.3f}")

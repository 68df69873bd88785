"""A key in Redis or Valkey that refuses late writers.

The newest stamp stands beside the key, in its slot. One script compares and writes. It is called through the client
that the caller has already, and that client's retries do no harm: each call has a number, and is applied once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import Fenced, InvalidConfig, InvalidName
from holdfast.names import is_unicode, new_token
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, stamp_of

Word: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Word]

_WORDS_MAX = 7000  # a script can hand on about 8,000 at once


class Call(NamedTuple):
    """One call of the script, and what is needed to read its answer."""

    key: str
    stamp: Stamp
    keys: list[str]
    args: list[Word]


@cache
def script_text() -> str:
    """The script that compares and writes."""
    return (files("holdfast.guards") / "guard.lua").read_text(encoding="utf-8")


class KeyRules:
    """What both faces share: everything but the call itself."""

    def __init__(self, client: Any, key: str, *, awaited: bool) -> None:
        _check_client(client, awaited=awaited)
        self.key = _checked_key(key)
        self.stamp_key = _beside(self.key)
        self._client = client
        self._script = client.register_script(script_text())

    def _call(self, lease: Bearer, commands: Sequence[Command], keys: Sequence[str] = ()) -> Call:
        stamp = stamp_of(lease)
        for key in keys:
            if _hashed(_checked_key(key)) != _hashed(self.key):
                raise InvalidConfig("keys", key, f"it must have the hash tag of the guarded key {self.key!r}")
        words: list[Word] = [str(stamp.fence), stamp.token, new_token()]
        for command in commands:
            words += [len(_checked_command(command)), *command]
        return Call(self.key, stamp, [self.stamp_key, self.key, *keys], words)

    def __repr__(self) -> str:
        return f"<guard of {self.key!r}>"


class RedisGuard(KeyRules):
    """Guards one key, through a client of redis-py or valkey-py that you have.

    The newest stamp stands at `stamp_key`. It stays when the key is deleted, because a late writer may come after that.
    """

    def __init__(self, client: Any, key: str) -> None:
        super().__init__(client, key, awaited=False)

    def set(self, lease: Bearer, value: Word) -> None:
        """Store a value, or raise `Fenced` if a newer holder was here before."""
        self.run(lease, ("SET", self.key, value))

    def delete(self, lease: Bearer) -> bool:
        """Remove the key, or raise `Fenced`; whether it was there."""
        return self.run(lease, ("DEL", self.key)) == [1]

    def hset(self, lease: Bearer, fields: Mapping[str, Word]) -> int:
        """Store fields of a hash, or raise `Fenced`; how many are new."""
        return int(self.run(lease, hash_command(self.key, fields))[0])

    def hdel(self, lease: Bearer, *fields: str) -> int:
        """Remove fields of a hash, or raise `Fenced`; how many were there."""
        return int(self.run(lease, ("HDEL", self.key, *fields))[0])

    def admit(self, lease: Bearer) -> None:
        """Let this holder in before it reads: from now on no older one can change what it reads."""
        self.run(lease)

    def run(self, lease: Bearer, *commands: Command, keys: Sequence[str] = ()) -> list[Any]:
        """Run commands in one step and return the server's answers, or raise `Fenced` and run none.

        `keys`: what they touch besides the guarded key, all with its hash tag. As in a transaction of the server,
        one that fails undoes none of those before it.
        """
        call = self._call(lease, commands, keys)
        return told(call, self._script(keys=call.keys, args=call.args))

    def newest(self) -> Stamp:
        """The newest holder that came; fence 0 if none did."""
        return stored(self._client.hmget(self.stamp_key, "fence", "token"))


def told(call: Call, answer: Sequence[Any]) -> list[Any]:
    """What the script has answered: the commands' own answers, or a refusal."""
    accepted, rest = answer
    if not accepted:
        raise Fenced(call.key, call.stamp.fence, int(rest))
    return list(rest)


def stored(found: Sequence[str | bytes | None]) -> Stamp:
    """A stamp as the server keeps it."""
    fence, token = found
    if fence is None or token is None:
        return UNSEEN
    return Stamp(int(fence), token.decode() if isinstance(token, bytes) else token)


def hash_command(key: str, fields: Mapping[str, Word]) -> Command:
    """`HSET` with all the fields."""
    if not isinstance(fields, Mapping) or not fields:
        raise InvalidConfig("fields", fields, "it must name at least one field and its value")
    return ("HSET", key, *(word for pair in fields.items() for word in pair))


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not key or not is_unicode(key):
        raise InvalidName(key, "a key must be text, and not empty")
    return key


def _checked_command(command: object) -> Command:
    rule = "a command is a sequence of words: text, bytes and numbers"
    if not isinstance(command, list | tuple) or not command:
        raise InvalidConfig("commands", command, rule)
    if len(command) > _WORDS_MAX:
        raise InvalidConfig("commands", command[0], f"a command may have at most {_WORDS_MAX} words")
    if not all(isinstance(word, str | bytes | int | float) and not isinstance(word, bool) for word in command):
        raise InvalidConfig("commands", command, rule)
    return command


def _hashed(key: str) -> str:
    """What the slot of a key is counted from: its hash tag, or all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def _beside(key: str) -> str:
    """A key in the same slot, whatever that is; no two keys have the same."""
    hashed = _hashed(key)
    if hashed != key:
        return f"fence:{key}"
    if "}" in key:
        rule = "with } and without a hash tag it has no neighbour in its slot: put a part of it in braces"
        raise InvalidName(key, rule)
    return f"{{{key}}}:fence"


def _check_client(client: Any, *, awaited: bool) -> None:
    kinds = type(client).__mro__
    if not callable(getattr(client, "register_script", None)) or "Pipeline" in kinds[0].__name__:
        raise InvalidConfig("client", client, "it must be a client of redis-py or valkey-py, and no pipeline")
    if any(".asyncio." in f"{kind.__module__}." for kind in kinds) != awaited:
        other = "holdfast.guards is for blocking ones" if awaited else "holdfast.aio.guards is for clients of asyncio"
        raise InvalidConfig("client", client, other)

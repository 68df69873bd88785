"""A guard of a key in Redis or Valkey.

The newest stamp is in a key of the same slot. One script compares and writes. The guard calls it through the caller's
own client. That client's retries do no harm: each call has a token and is applied once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeAlias

from holdfast.clock import SYSTEM
from holdfast.errors import Fenced, InvalidConfig, InvalidName
from holdfast.names import is_unicode, new_token
from holdfast.rules.guard import UNSEEN, Bearer, Stamp, stamp_of

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]

_ARGUMENTS_MAX = 7000  # a script can pass on about 8,000 at once


class ScriptCall(NamedTuple):
    """One call of the script, and the values needed to interpret its answer."""

    key: str
    stamp: Stamp
    keys: list[str]
    args: list[Argument]


@cache
def script_text() -> str:
    """Return the text of the script that compares and writes."""
    return (files("holdfast.guards") / "guard.lua").read_text(encoding="utf-8")


class KeyRules:
    """The part that both faces share: everything but the call of the script."""

    def __init__(self, client: Any, key: str, *, awaited: bool) -> None:
        _check_client(client, awaited=awaited)
        self.key = _checked_key(key)
        self.stamp_key = _beside(self.key)
        self._client = client
        self._script = client.register_script(script_text())

    def _call(self, lease: Bearer, commands: Sequence[Command], keys: Sequence[str] = ()) -> ScriptCall:
        stamp = stamp_of(lease, SYSTEM.wall_us())
        for key in keys:
            if _hashed(_checked_key(key)) != _hashed(self.key):
                raise InvalidConfig("keys", key, f"it must have the hash tag of the guarded key {self.key!r}")
        arguments: list[Argument] = [str(stamp.fence), stamp.token, new_token()]
        for command in commands:
            arguments += [len(_checked_command(command)), *command]
        return ScriptCall(self.key, stamp, [self.stamp_key, self.key, *keys], arguments)

    def __repr__(self) -> str:
        return f"<guard of {self.key!r}>"


class RedisGuard(KeyRules):
    """Guards one key.

    `client`: your client of redis-py or valkey-py. `key`: the key to guard. The newest stamp is at `stamp_key`. It
    stays when the key is deleted, because an outdated writer may come after that.
    """

    def __init__(self, client: Any, key: str) -> None:
        super().__init__(client, key, awaited=False)

    def set(self, lease: Bearer, value: Argument) -> None:
        """Store `value`, or raise `Fenced` if a newer holder than `lease` was here before."""
        self.run(lease, ("SET", self.key, value))

    def delete(self, lease: Bearer) -> bool:
        """Remove the key, or raise `Fenced` if `lease` is outdated; return whether the key existed."""
        return self.run(lease, ("DEL", self.key)) == [1]

    def hset(self, lease: Bearer, fields: Mapping[str, Argument]) -> int:
        """Store `fields` of a hash, or raise `Fenced` if `lease` is outdated; return how many are new."""
        return int(self.run(lease, hash_command(self.key, fields))[0])

    def hdel(self, lease: Bearer, *fields: str) -> int:
        """Remove `fields` of a hash, or raise `Fenced` if `lease` is outdated; return how many existed."""
        return int(self.run(lease, ("HDEL", self.key, *fields))[0])

    def admit(self, lease: Bearer) -> None:
        """Record the fence of `lease` before its holder reads: from now on no older holder can change the key."""
        self.run(lease)

    def run(self, lease: Bearer, *commands: Command, keys: Sequence[str] = ()) -> list[Any]:
        """Run `commands` in one step and return the server's answers, or raise `Fenced` and run none.

        `lease`: its fence is compared. `keys`: the other keys that the commands use, all with the hash tag of the
        guarded key. As in a transaction of the server, a command that fails does not undo those before it.
        """
        call = self._call(lease, commands, keys)
        return interpret(call, self._script(keys=call.keys, args=call.args))

    def newest(self) -> Stamp:
        """Return the newest stamp; fence 0 if there is none."""
        return stored(self._client.hmget(self.stamp_key, "fence", "token"))


def interpret(call: ScriptCall, answer: Sequence[Any]) -> list[Any]:
    """Return the answers of the commands, or raise `Fenced` if the script refused the fence."""
    accepted, rest = answer
    if not accepted:
        raise Fenced(call.key, call.stamp.fence, int(rest))
    return list(rest)


def stored(found: Sequence[str | bytes | None]) -> Stamp:
    """Return the stamp from its stored fields."""
    fence, token = found
    if fence is None or token is None:
        return UNSEEN
    return Stamp(int(fence), token.decode() if isinstance(token, bytes) else token)


def hash_command(key: str, fields: Mapping[str, Argument]) -> Command:
    """Return the `HSET` command of these fields."""
    if not isinstance(fields, Mapping) or not fields:
        raise InvalidConfig("fields", fields, "it must name at least one field and its value")
    return ("HSET", key, *(argument for pair in fields.items() for argument in pair))


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not key or not is_unicode(key):
        raise InvalidName(key, "a key must be text, and not empty")
    return key


def _checked_command(command: object) -> Command:
    rule = "a command is a sequence of text, bytes and numbers"
    if not isinstance(command, list | tuple) or not command:
        raise InvalidConfig("commands", command, rule)
    if len(command) > _ARGUMENTS_MAX:
        raise InvalidConfig("commands", command[0], f"a command may have at most {_ARGUMENTS_MAX} arguments")
    if not all(
        isinstance(argument, str | bytes | int | float) and not isinstance(argument, bool) for argument in command
    ):
        raise InvalidConfig("commands", command, rule)
    return command


def _hashed(key: str) -> str:
    """Return the part of the key that determines its slot: its hash tag, or all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    return tag if opened and closed and tag else key


def _beside(key: str) -> str:
    """Return the name of the stamp's key: in the same slot, and different for each key."""
    hashed = _hashed(key)
    if hashed != key:
        return f"fence:{key}"
    if "}" in key:
        rule = "it contains } but no hash tag, so no other key shares its slot: put a part of it in braces"
        raise InvalidName(key, rule)
    return f"{{{key}}}:fence"


def _check_client(client: Any, *, awaited: bool) -> None:
    kinds = type(client).__mro__
    if not callable(getattr(client, "register_script", None)) or "Pipeline" in kinds[0].__name__:
        raise InvalidConfig("client", client, "it must be a client of redis-py or valkey-py, not a pipeline")
    if any(".asyncio." in f"{kind.__module__}." for kind in kinds) != awaited:
        blocking = "use holdfast.guards for a blocking client"
        rule = blocking if awaited else "use holdfast.aio.guards for an asyncio client"
        raise InvalidConfig("client", client, rule)

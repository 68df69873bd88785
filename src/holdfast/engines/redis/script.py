"""The Lua scripts: one file per command, and shared files that they include.

A line of a Lua file that begins with `--@` is filled in when the script is loaded:

    --@include lease/record.lua               that file, once per script: a second include of it adds nothing
    --@inline lease/write.lua                 that file, each time: statements, not definitions
    --@const OFFER_US = rules.lease.OFFER_US  `local OFFER_US = 1000000`: the value that the Python rule has

So every constant is defined once, in Python. The loader removes comments before a script is sent to the server.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.resp import bulk

if TYPE_CHECKING:
    from collections.abc import Callable

_DIRECTIVE = re.compile(r"\s*--@(include|inline|const) (.+)")
_COMMENT = re.compile(r"\s*--(?:\s.*)?\n|^\s*\n")
_CONSTANT = re.compile(r"(\w+) = ((?:rules|commands)(?:\.\w+)*)\.(\w+)")
# The client's channel and the memory time come before the arguments of most scripts.
_CLIENT_ARGUMENTS = 2


@cache
def _bundle() -> dict[str, tuple[str, ...]]:
    """Read the Lua files that the wheel carries as one file (see hatch_build.py); a checkout has none."""
    bundle = files("holdfast.engines.redis") / "scripts.bundle"
    if not bundle.is_file():
        return {}
    found = re.split(r"^--@file (.+)\n", bundle.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {path: tuple(text.splitlines(keepends=True)) for path, text in zip(found[1::2], found[2::2], strict=True)}


@cache
def _file(path: str) -> tuple[str, ...]:
    if bundle := _bundle():
        return bundle[path]
    text = (files("holdfast.engines.redis") / "lua" / path).read_text(encoding="utf-8")
    return tuple(text.splitlines(keepends=True))


def _lua(value: str | int) -> str:
    """Write a constant as Lua source."""
    if isinstance(value, int):
        return f"{value:d}"
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


def constant_line(directive: str) -> str:
    """Return the Lua definition for the text of a `--@const` line, with the present value of the rule's constant."""
    found = _CONSTANT.fullmatch(directive)
    if found is None:
        raise ValueError(f"--@const {directive}: expected NAME = rules.module.NAME")
    value = getattr(import_module(f"holdfast.{found[2]}"), found[3])
    return f"local {found[1]} = {_lua(value)}\n"


def script_text(path: str, included: set[str] | None = None) -> str:
    """Return the text of a script with its included files and constants filled in."""
    included = set() if included is None else included
    text = []
    for line in _file(path):
        found = _DIRECTIVE.match(line)
        if found is None:
            if code := _COMMENT.sub("", line).rstrip():
                text.append(f"{code}\n")
        elif found[1] == "const":
            text.append(constant_line(found[2].strip()))
        else:
            other = found[2].strip()
            if found[1] == "inline" or other not in included:
                included.add(other)
                text.append(script_text(other, included))
    return "".join(text)


class Script:
    """The script of one command: its text, its hash, and how the command's arguments are packed.

    `count`: the fixed number of arguments; then `arguments` returns packed bytes, and the packer caches the bytes
    before them, which are the same for every command on a name. Without `count`, `arguments` returns a tuple. The
    client's channel and the memory time come first, except for a `counter`, which is one key and wakes no client.
    """

    def __init__(
        self, file: str, arguments: Callable[[Any], Any], *, count: int | None = None, counter: bool = False
    ) -> None:
        self.file = file
        self.text = script_text(f"{file}.lua")
        self.sha = hashlib.sha1(self.text.encode()).hexdigest()  # noqa: S324 - the server identifies scripts by it
        self.arguments: Callable[[Any], Any] = arguments
        self.count = count
        self.counter = counter

    def call(self, *, with_text: bool = False) -> bytes:
        """Pack the command and the script: its hash, or with `with_text` its text."""
        return bulk("EVAL") + bulk(self.text) if with_text else b"$7\r\nEVALSHA\r\n$40\r\n%b\r\n" % self.sha.encode()

    def head(self, keys: int, *, with_text: bool = False) -> bytes:
        """Pack everything up to the first key, for a script with a fixed number of arguments."""
        assert self.count is not None
        total = 3 + keys + _CLIENT_ARGUMENTS + self.count
        return b"*%d\r\n%b%b" % (total, self.call(with_text=with_text), bulk(str(keys)))

"""The build hook of the main wheel. It makes the wheel smaller; an editable install and the tests read the sources.

- All Lua files of the Redis engine go into one file, without their comments. Sixty small files compress badly and are
  opened one by one. The loader, `holdfast.engines.redis.script`, fills in both in the same way.
- Python files lose their comments, and the docstrings of functions that no user calls: private ones, and those of
  internal modules. Every statement stays on its line, for tracebacks and debuggers.
- The archive is written again with the highest compression.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import re
import tempfile
import tokenize
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/holdfast/engines/redis/lua")
BUNDLE = "holdfast/engines/redis/scripts.bundle"
# Modules whose functions only Holdfast calls: `help()` of an object that a user holds does not show them. The base
# classes in `engines` are for the authors of other engines.
INTERNAL = (
    "holdfast/rules/",
    *(f"holdfast/engines/{each}/" for each in ("memory", "sqlite", "files", "redis")),
    "holdfast/core/keeper/",
    *(
        f"holdfast/core/{each}.py"
        for each in ("client", "resend", "step", "promise", "lease/acquire", "lease/release", "lease/state")
    ),
    *(f"holdfast/core/queue/{each}.py" for each in ("consumer", "handler_threads", "session", "worker")),
    *(f"holdfast/core/ownership/{each}.py" for each in ("consumer", "owner")),
    *(f"holdfast/cli/run/{each}.py" for each in ("program", "signals", "supervisor", "terminal", "watcher")),
    *(f"holdfast/cli/{each}.py" for each in ("errors", "output", "pool_like", "prompts")),
    *(f"holdfast/{each}.py" for each in ("failpoints", "host", "interrupts", "shared_files")),
)
# A comment begins with `-- `; lines that begin with `--@` are filled in by the loader.
_COMMENT = re.compile(r"\s*--(?:\s.*)?")


def bundled(folder: Path) -> str:
    """Return the Lua files of a folder as one text: each after a line `--@file <path>`, without comment lines."""
    text = []
    for file in sorted(folder.rglob("*.lua")):
        lines = file.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if line.strip() and not _COMMENT.fullmatch(line)]
        text += [f"--@file {file.relative_to(folder).as_posix()}", *kept]
    return "\n".join(text) + "\n"


def without_comments(source: str) -> str:
    """Return Python source without its comments, with all else on the same line and column."""
    lines = io.StringIO(source).readlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    return "".join(lines)


def without_docstrings(source: str, name: str) -> str:
    """Return Python source without the docstrings of functions that no user calls. `name`: of the file in the wheel."""
    lines = io.StringIO(source).readlines()
    internal = name.startswith(INTERNAL)
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or ast.get_docstring(function) is None:
            continue
        if not internal and (function.name.startswith("__") or not function.name.startswith("_")):
            continue
        text = function.body[0]
        column, last = text.col_offset, text.end_lineno or text.lineno
        lines[text.lineno - 1 : last] = ["\n"] * (last - text.lineno + 1)
        if len(function.body) == 1:
            lines[text.lineno - 1] = " " * column + "...\n"
    return "".join(lines)


def shrink(wheel: Path) -> None:
    """Write the wheel again, with the highest compression without comments and internal docstrings."""
    with zipfile.ZipFile(wheel) as old:
        files = {info.filename: old.read(info) for info in old.infolist()}
        stamp = old.infolist()[0].date_time
    record = next(name for name in files if name.endswith(".dist-info/RECORD"))
    del files[record]
    rows = []
    for name, data in files.items():
        if name.endswith(".py"):
            files[name] = without_docstrings(without_comments(data.decode()), name).encode()
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(files[name])}\n")
    files[record] = "".join([*rows, f"{record},,\n"]).encode()
    with zipfile.ZipFile(wheel, "w") as new:
        for name, data in files.items():
            info = zipfile.ZipInfo(name, stamp)
            info.external_attr = 0o100644 << 16
            new.writestr(info, data, zipfile.ZIP_DEFLATED, compresslevel=9)


class SmallWheel(BuildHookInterface[Any]):
    """Adds the bundle to the wheel, and shrinks the wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the bundle; an editable install uses the folder."""
        if version == "editable":
            return
        self._made = tempfile.TemporaryDirectory(prefix="holdfast-build-")
        bundle = Path(self._made.name) / "scripts.bundle"
        bundle.write_text(bundled(Path(self.root) / FOLDER), encoding="utf-8")
        build_data["force_include"][str(bundle)] = BUNDLE

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove the bundle once it is in the wheel, and shrink the wheel."""
        if version != "editable":
            self._made.cleanup()
            shrink(Path(artifact_path))

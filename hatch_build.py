"""The build hook of the wheel: all Lua files of the Redis engine go into one file, without their comments.

Sixty small files compress badly and are opened one by one. An editable install and the tests read the folder; the
loader, `holdfast.engines.redis.script`, fills in both in the same way.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("src/holdfast/engines/redis/lua")
BUNDLE = "holdfast/engines/redis/scripts.bundle"
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


class LuaBundle(BuildHookInterface[Any]):
    """Adds the bundle to the wheel."""

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
        """Remove the bundle once it is in the wheel."""
        if version != "editable":
            self._made.cleanup()

"""Lazy exports of a package: the first use of a name imports its module, so that importing the package stays quick."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable


def lazy_exports(
    package: str, homes: dict[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package; `homes` maps each module to the names that it exports."""

    def load(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415 - only when a name is used

        for home, names in homes.items():
            if name in names:
                value = getattr(import_module(home), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *(name for names in homes.values() for name in names)})

    return load, known

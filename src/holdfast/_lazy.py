"""Names that are loaded when they are first used, so that a program does not pay for what it may need."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as typing's, which would have to be imported
if TYPE_CHECKING:
    from collections.abc import Callable


def later(package: str, homes: dict[str, tuple[str, ...]]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """The `__getattr__` and the `__dir__` of a package whose other names are in these modules."""

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

"""Lazy exports of a package, and errors for what is not installed.

The first use of a name imports its module, so that importing the package stays quick.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable


class Requires:
    """Guard imports: `with Requires("holdfast[redis]", "redis"):` names the package to install if `redis` is missing.

    The names of a module and of its package often differ. `contextlib` would cost every program that imports holdfast.
    """

    def __init__(self, package: str, *modules: str) -> None:
        """`package`: what pip installs, with its extra; `modules`: the modules, with all below them, that it brings."""
        self._package = package
        self._modules = tuple(f"{module}." for module in modules)

    def __enter__(self) -> None:
        """Do nothing; the imports follow."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Replace the error of a missing module by one with the install line."""
        if isinstance(error, ModuleNotFoundError) and f"{error.name}.".startswith(self._modules):
            why = f"{error.name} is not installed: pip install '{self._package}'"
            raise ModuleNotFoundError(why, name=error.name, path=error.path) from error


def lazy_exports(
    package: str, homes: dict[str, tuple[str, ...]], wheel: str = "holdfast"
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package.

    `homes` maps each module to the names that it exports; `wheel` is what pip installs for a module that is missing.
    """

    def load(name: str) -> object:
        from importlib import import_module  # noqa: PLC0415 - only when a name is used

        for home, names in homes.items():
            if name in names:
                with Requires(wheel, home):
                    value = getattr(import_module(home), name)
                setattr(sys.modules[package], name, value)
                return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *(name for names in homes.values() for name in names)})

    return load, known

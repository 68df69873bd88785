"""Explains a missing module with the extra that installs it: the names of module and package often differ."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def requires_extra(extra: str, *modules: str) -> Iterator[None]:
    """Guard imports of these modules: if one of them is missing, name the extra that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        why = f"{error.name} is not installed: pip install 'holdfast[{extra}]'"
        raise ModuleNotFoundError(why, name=error.name, path=error.path) from error

"""What is not there is told with the extra that brings it: the name of a module is seldom the name to install."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def brought_by(extra: str, *modules: str) -> Iterator[None]:
    """Imports of these modules, which the extra brings; what they miss themselves is for them to tell."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in modules:
            raise
        why = f"{error.name} is not installed: pip install 'holdfast[{extra}]'"
        raise ModuleNotFoundError(why, name=error.name, path=error.path) from error

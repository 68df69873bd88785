"""How a mutant changes the library: it replaces an existing name, or changes existing text of a script.

A mutant that finds nothing to change raises an error. Otherwise moving a function would turn it into the unmodified
client without notice.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable


def put(owner: Any, name: str, wrong: Any) -> None:
    """Replace a name of a module or class."""
    wrap(owner, name, lambda _right: wrong)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a name of a module or class with what `make` returns for its present value."""
    setattr(owner, name, make(getattr(owner, name)))


def rewrite(command: type, *changes: tuple[str, str]) -> None:
    """Change the script of a command: replace each text, which must occur in it exactly once."""
    script = SCRIPTS[command]
    for right, wrong in changes:
        if script.text.count(right) != 1:
            raise ValueError(f"the script of {command.__name__} has changed: {right!r} does not stand in it once")
        script.text = script.text.replace(right, wrong)
    script.sha = hashlib.sha1(script.text.encode()).hexdigest()

"""How a mutant changes the library: a name that is there is replaced, a text that is there is changed.

The rule: a mutant that finds nothing to change is an error. One that changes nothing would be the right client under
another name, and whoever moves a function would disarm it unseen.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from holdfast.engines.redis.scripts import SCRIPTS

if TYPE_CHECKING:
    from collections.abc import Callable


def put(owner: Any, name: str, wrong: Any) -> None:
    """Something else under this name."""
    wrap(owner, name, lambda _right: wrong)


def wrap(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Under this name what is made of the right thing."""
    setattr(owner, name, make(getattr(owner, name)))


def rewrite(command: type, *changes: tuple[str, str]) -> None:
    """Another script for this command: each text that stands in it once becomes another."""
    script = SCRIPTS[command]
    for right, wrong in changes:
        if script.text.count(right) != 1:
            raise ValueError(f"the script of {command.__name__} has changed: {right!r} does not stand in it once")
        script.text = script.text.replace(right, wrong)
    script.sha = hashlib.sha1(script.text.encode()).hexdigest()

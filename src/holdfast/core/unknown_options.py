"""Keyword options that do not exist: the error lists the known ones, the closest match, and the way of Holdfast."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from holdfast.config import did_you_mean
from holdfast.errors import UnknownOption
from holdfast.text import NOT_SHOWN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
F = TypeVar("F", bound="Callable[..., Any]")
_COROUTINE = 0x80  # inspect.CO_COROUTINE, without the slow import
# Options of other lock libraries, such as redis-py's.
_ELSEWHERE = {
    "blocking": "pass timeout=0 to try once, timeout=None to wait for ever",
    "blocking_timeout": "pass timeout=, the seconds to wait; ttl= is how long a grant lasts",
    "sleep": "leave it out: waiting needs no polling",
    "thread_local": "leave it out: each acquire returns a lease of its own",
    "expire": "pass ttl=; a background thread renews the lease",
    "auto_renewal": "leave it out: a background thread renews every lease",
}


def teaching(kind: type[T]) -> type[T]:
    """Make the methods of a class that take keyword options refuse unknown ones with `UnknownOption`."""
    for name, method in list(vars(kind).items()):
        code = getattr(method, "__code__", None)
        if code is not None and code.co_kwonlyargcount and not name.startswith("_"):
            setattr(kind, name, taught(method))
    return kind


def taught(function: F) -> F:
    """Make a function refuse unknown options with `UnknownOption`, which lists the known ones."""
    code = function.__code__
    known = tuple(name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self")

    def refuse(options: Mapping[str, object]) -> None:
        refuse_unknown(function.__name__, {name: options[name] for name in options if name not in known}, known)

    if code.co_flags & _COROUTINE:

        @wraps(function)
        async def call(*args: Any, **options: Any) -> Any:
            try:
                return await function(*args, **options)
            except TypeError:
                refuse(options)
                raise
    else:

        @wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except TypeError:
                refuse(options)
                raise

    return cast("F", call)


def refuse_unknown(call: str, unknown: Mapping[str, object], known: tuple[str, ...]) -> None:
    """Raise `UnknownOption` for the first of the unknown options, if there is one."""
    for option, value in unknown.items():
        hint = f": {_ELSEWHERE[option]}" if option in _ELSEWHERE else did_you_mean(option, known)
        shown = NOT_SHOWN if call == "connect" else value  # the value may be a password
        raise UnknownOption(option, shown, f"{call}() takes only {', '.join(known)}{hint}") from None

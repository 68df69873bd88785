"""What a lock object knows, whichever face it has: its settings, its name template, and who is inside.

A lock is only a way to get leases. `reentrant` is counted here, per thread or task; the engine sees one lease.
"""

from __future__ import annotations

import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.clock import Seconds, timeout_ns, ttl_ms
from holdfast.core.lease.acquire import end
from holdfast.engines import Capability
from holdfast.errors import InvalidConfig, InvalidName
from holdfast.names import checked_name, this_process

if TYPE_CHECKING:
    from collections.abc import Callable, MutableMapping

    from holdfast.core.client import Client
    from holdfast.core.lease.lease import LeaseBase

TTL_S: Final = 30.0


class Unset:
    """Not given: the lock's own value is meant."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()


REPORT: Final = "report"


class Leaving(NamedTuple):
    """One block at its end: whose, the how-manieth of them, and the lease to release (none inside an outer block)."""

    who: object
    depth: int
    lease: LeaseBase | None


class LockBase:
    """Settings, checked before any input or output."""

    # What most locks never change: many are made for one use.
    _reentrant = False
    _on_loss: str | Callable[[Any], object] = REPORT
    _confirm: str | None = None
    _label: str | None = None
    _likes: MutableMapping[str, Any] = MappingProxyType({})  # type: ignore[assignment] # most locks decorate nothing
    _entered: dict[object, list[LeaseBase]] = MappingProxyType({})  # type: ignore[assignment] # nobody yet

    def __init__(
        self,
        client: Client,
        name: str,
        *,
        ttl: Seconds,
        timeout: Seconds | None,
        reentrant: bool,
        on_loss: str | Callable[[Any], object],
        policies: tuple[str, ...],
        confirm: str | None = None,
        label: str | None = None,
    ) -> None:
        self.name = checked_name(name)
        self._client = client
        self._ttl_ms = ttl_ms(ttl)
        self._timeout_ns = None if timeout is None else timeout_ns(timeout)
        if reentrant:
            self._reentrant = True
        if on_loss is not REPORT:
            self._on_loss = _checked_policy(on_loss, policies)
        if confirm is not None:
            self._confirm = confirmed_by(client, confirm)
        if label is not None:
            self._label = label

    def __repr__(self) -> str:
        return f"<lock {self.name!r} on {self._client.url}>"

    def _fields(self) -> tuple[Any, ...]:
        """What a new lease is made of."""
        client = self._client
        holder, packed = client.holder, client.packed
        if self._label is not None:
            holder = this_process(self._label, holder.info)
            packed = holder.packed()
        on_loss = None if self._on_loss is REPORT or not callable(self._on_loss) else self._on_loss
        return (client, self.name, self._ttl_ms, holder, packed, on_loss, self._confirm is not None)

    def _timeout_of(self, timeout: Seconds | Unset | None) -> int | None:
        return self._timeout_ns if isinstance(timeout, Unset) else timeout_ns(timeout)

    def _inside(self, who: object) -> LeaseBase | None:
        """The lease under which this thread or task may simply enter again; `LeaseLost` if it is no longer held.

        Also in a forked child, whose thread has the number of its parent's but holds nothing.
        """
        stack = self._entered.get(who)
        if not stack or not self._reentrant:
            return None
        stack[-1].check()
        return stack[-1]

    def _enter(self, who: object, lease: LeaseBase) -> None:
        entered: dict[object, list[LeaseBase]] = self.__dict__.setdefault("_entered", {})
        entered.setdefault(who, []).append(lease)

    def _depth(self, who: object) -> int:
        """In how many blocks of this lock the thread or task is."""
        return len(self._entered.get(who, ()))

    def _leaving(self, who: object) -> Leaving:
        """The block that is about to end. Changes nothing."""
        stack = self._entered.get(who)
        if not stack and not self._reentrant and self._entered:
            # Entered in one task and left in another, as fixtures and generators do: the last one in goes out.
            who, stack = next(reversed(self._entered.items()))
        if not stack:
            raise RuntimeError(f"{self!r} is left by a thread or task that has not entered it")
        return Leaving(who, len(stack), None if stack[-1] in stack[:-1] else stack[-1])

    def _left(self, block: Leaving | None, who: object) -> Leaving:
        """The block has ended, however it did. May be said twice, because an interrupt may strike the first time."""
        block = block or self._leaving(who)
        if block.lease is not None:
            end(block.lease)
        self._back_to(block.who, block.depth - 1)
        return block

    def _back_to(self, who: object, depth: int) -> None:
        stack = self._entered.get(who)
        if stack is not None:
            del stack[depth:]
            if not stack:
                self._entered.pop(who, None)

    def _naming(self, work: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
        """How the names of a decorated function come about; its locks are kept while somebody uses them."""
        self.__dict__.setdefault("_likes", weakref.WeakValueDictionary())
        return naming(self.name, work)

    def _settings(self) -> dict[str, Any]:
        """What another lock with another name would be made with."""
        return {
            "ttl": self._ttl_ms / 1000,
            "timeout": None if self._timeout_ns is None else self._timeout_ns / 1e9,
            "reentrant": self._reentrant,
            "on_loss": self._on_loss,
            "confirm": self._confirm,
        }


def _checked_policy(on_loss: str | Callable[[Any], object], policies: tuple[str, ...]) -> str | Callable[[Any], object]:
    if callable(on_loss):
        if is_coroutine_function(on_loss):
            raise InvalidConfig("on_loss", on_loss, "it must be a plain function: nobody would await it")
        return on_loss
    if on_loss not in policies:
        raise InvalidConfig("on_loss", on_loss, f"it must be {' or '.join(policies)}, or callable with the lease")
    return on_loss


def confirmed_by(client: Client, confirm: str) -> str:
    """Who must hear of a grant before it counts, checked."""
    if confirm != "replicas":
        raise InvalidConfig("confirm", confirm, "it must be replicas, or None")
    if Capability.REPLICAS not in client.engine.capabilities:
        raise InvalidConfig("confirm", confirm, f"{client.engine.name} has no replicas")
    return confirm


def is_coroutine_function(work: object) -> bool:
    """Whether calling it gives something to be awaited."""
    import inspect  # noqa: PLC0415 - slow to import, and few need it

    called = type(work).__call__ if callable(work) else None  # of an object that can be called
    return inspect.iscoroutinefunction(work) or inspect.iscoroutinefunction(called)


def refuse_generator(work: Callable[..., Any]) -> None:
    """The body of a generator runs when it is iterated: long after the lease was released."""
    import inspect  # noqa: PLC0415 - slow to import, and only decorators need it

    if not callable(work):
        raise InvalidConfig("function", work, "it must be callable")
    if inspect.isgeneratorfunction(work) or inspect.isasyncgenfunction(work):
        rule = "a generator's body would run without the lease: take the lease inside it"
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)


def refuse_coroutine(work: Callable[..., Any]) -> None:
    """The blocking face awaits nothing."""
    refuse_generator(work)
    if is_coroutine_function(work):
        raise InvalidConfig("function", getattr(work, "__qualname__", work), "a coroutine function needs holdfast.aio")


def refuse_plain(work: Callable[..., Any]) -> None:
    """For the asyncio face, before anything runs: a plain function would have done its work when it is refused.

    A lambda and an object that can be called may well give something to be awaited; see `awaitable`.
    """
    import functools  # noqa: PLC0415 - as below
    import inspect  # noqa: PLC0415 - slow to import, and few need it

    while isinstance(work, functools.partial):
        work = work.func
    refuse_generator(work)
    named = (inspect.isfunction(work) or inspect.ismethod(work)) and work.__name__ != "<lambda>"
    if named and not inspect.iscoroutinefunction(work):
        raise InvalidConfig("function", work.__qualname__, "a plain function needs the blocking face")


def awaitable(work: Callable[..., Any], given: Any) -> Any:
    """What was given, if it can be awaited."""
    import inspect  # noqa: PLC0415 - as above

    if not inspect.isawaitable(given):
        rule = f"it returned {type(given).__name__}, which cannot be awaited: a plain function needs the blocking face"
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)
    return given


def refuse_unfinished(work: Callable[..., Any], result: object) -> None:
    """What is still to be awaited or iterated would run without the lease."""
    if any(hasattr(result, each) for each in ("__await__", "gi_frame", "ag_frame")):
        rule = f"it returned {type(result).__name__}, whose body would run without the lease"
        raise InvalidConfig("function", getattr(work, "__qualname__", work), rule)


def naming(template: str, work: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """How a decorated function's arguments become a name: `"report/{day}"` takes the argument `day`.

    What the template asks for and the function does not have is refused when it is decorated.
    """
    import inspect  # noqa: PLC0415 - slow to import, and only decorators need it
    import string  # noqa: PLC0415

    signature = inspect.signature(work)
    try:
        fields = [field for _, field, _, _ in string.Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise InvalidName(template, f"it cannot be read as a template: {error}") from None
    for field in fields:
        root = field.split(".")[0].split("[")[0]
        if root not in signature.parameters:
            asked = ", ".join(signature.parameters) or "none"
            raise InvalidName(template, f"the function has no argument {root!r}; it has {asked}")

    def name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if not fields:
            return template.format()
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return checked_name(template.format(**bound.arguments))

    return name

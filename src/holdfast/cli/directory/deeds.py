"""Who owns which key: `directory ls`, `show`, `take`, `hand-off`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.cli import asking, codes, failing, looking, output
from holdfast.cli.plain import plain
from holdfast.core.registry import registry as directory
from holdfast.core.step import run
from holdfast.errors import InvalidConfig, NotAcquired, NotFound

if TYPE_CHECKING:
    from holdfast.blocking import Registry
    from holdfast.core.registry.registry import RegistryEntry

_COLUMNS = ("key", "owner", "label", "group", "owned", "left", "fence")


def _facts(held: RegistryEntry) -> dict[str, Any]:
    owner = held.owner
    return {
        "key": held.key,
        "owner": {"host": owner.host, "pid": owner.pid, "start": owner.start, "label": owner.label},
        "info": held.info,
        "group": held.group,
        "since": held.seconds,
        "remaining": held.remaining,
        "fence": held.fence,
    }


def _row(held: RegistryEntry) -> tuple[object, ...]:
    who = f"{held.owner.host}:{held.owner.pid}"
    times = output.span(held.seconds), output.span(held.remaining)
    return (held.key, who, held.owner.label, held.group, *times, held.fence)


def list_keys(url: str | None, name: str, prefix: str, group: str | None, *, as_json: bool) -> int:
    with looking.connect(url, "directories") as hf:
        found = hf.registry(name).list(prefix, group=group)
    if as_json:
        output.print_json({"directory": name, "keys": [_facts(held) for held in found]})
    elif found:
        output.console().print(output.table(_COLUMNS, map(_row, found), right=("owned", "left", "fence")))
    else:
        output.console().print("nothing is owned")
    return codes.OK


def show(url: str | None, name: str, key: str, *, as_json: bool) -> int:
    with looking.connect(url, "directories") as hf:
        place = hf.registry(name)
        held, members = _owned(place, key), place.members(key)
    if as_json:
        output.print_json({"directory": name, **_facts(held), "members": members})
    else:
        output.console().print(output.facts([*_lines(held), ("joined", ", ".join(members) or "nobody")]))
    return codes.OK


def take(url: str | None, name: str, key: str, reason: str, *, yes: bool, as_json: bool) -> int:
    """From the owner that was shown, and no other."""
    if not reason:
        raise InvalidConfig("reason", reason, "it must be text, for the owner to read")
    with looking.connect(url, "directories") as hf:
        place = hf.registry(name)
        held = _owned(place, key)
        if not yes and not asking.agreed([*_lines(held), ("reason", reason)], "owner", "Take it?"):
            return _nothing_done(name, key, as_json=as_json)
        run(directory.expel(place, key, reason, held.fence))
    if as_json:
        output.print_json({"directory": name, "taken": _facts(held), "reason": reason})
    else:
        whose = f"{held.owner.host}:{held.owner.pid}"
        said = f"{plain(key)!r} is taken from {whose}, fence {held.fence}; the next who claims it has it"
        output.console().print(said, markup=False, soft_wrap=True)
    return codes.OK


def hand_off(url: str | None, name: str, key: str, to: str, within: float, *, yes: bool, as_json: bool) -> int:
    """Taken by this command for a moment, so that nobody comes between."""
    directory.checked_heir(to, within)
    with looking.connect(url, "directories") as hf:
        place = hf.registry(name)
        held = _owned(place, key)
        if not yes and not asking.agreed([*_lines(held), ("to", to)], "owner", "Hand it off?"):
            return _nothing_done(name, key, as_json=as_json)
        run(directory.expel(place, key, f"handed off to {to}", held.fence))
        lease = place.claim(key)
        if isinstance(lease, directory.RegistryEntry):
            raise NotAcquired(f"{name}/{key}", holder=str(lease.owner), fence=lease.fence)
        with lease:
            lease.hand_off(to, within)
    if as_json:
        output.print_json({"directory": name, "taken": _facts(held), "to": to, "within": within})
    else:
        said = f"{plain(key)!r} is kept for {plain(to)!r} for {output.span(within)}"
        output.console().print(said, markup=False, soft_wrap=True)
    return codes.OK


def _owned(place: Registry, key: str) -> RegistryEntry:
    held = place.owner(key)
    if held is None:
        raise NotFound(f"{place.name}/{key}", "owner")
    return held


def _lines(held: RegistryEntry) -> list[tuple[str, object]]:
    """What people are told of an owner."""
    lines: list[tuple[str, object]] = [
        ("key", held.key),
        ("owner", f"{held.owner.host}, process {held.owner.pid}"),
        ("label", held.owner.label or "-"),
        ("since", f"{output.span(held.seconds)} ago"),
        ("remaining", f"{output.span(held.remaining)} unless it is renewed"),
        ("fence", held.fence),
        ("group", held.group or "-"),
    ]
    return [*lines, ("info", held.info)] if held.info else lines


def _nothing_done(name: str, key: str, *, as_json: bool) -> int:
    return failing.tell("refused", codes.ATTENTION, "nothing was done", as_json=as_json, name=f"{name}/{key}")

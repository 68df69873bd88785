"""The two faces are one library: the same names and shapes, awaited or not."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path

import pytest

import holdfast
import holdfast.types
from holdfast import aio, blocking

CLASSES = [
    "Worker",
    "Queue",
    "Message",
    "DeadLetterQueue",
    "Consumer",
    "Owner",
    "PartitionedQueue",
    "Assignment",
    "RWLease",
    "Budget",
    "RegistryLease",
    "Registry",
    "OnceClaim",
    "Holdfast",
    "Item",
    "Leader",
    "Leading",
    "Lease",
    "RateLimiter",
    "Lock",
    "LockMany",
    "LeaseGroup",
    "Once",
    "Pool",
    "RWLock",
    "Reservation",
    "Permit",
    "Semaphore",
    "RWLockMode",
    "LossEvent",
    "Term",
]
# What the two languages of Python call differently.
AWAITED = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}
# A check of a lease is local, that of a queue looks at every message; an owner is made by a queue, and looked up by a
# directory.
BOTH_WAYS = {"check", "owner"}
# A word to something that runs here; there is nothing to wait for.
NOTHING_TO_AWAIT = {
    "budget",
    "check",
    "consumer",
    "first",
    "is_set",
    "leader",
    "leading",
    "limit",
    "lock",
    "lock_many",
    "on_closing",
    "once",
    "owner",
    "part",
    "partitioned",
    "pool",
    "queue",
    "read",
    "registry",
    "remaining",
    "resign",
    "rwlock",
    "semaphore",
    "stop",
    "worker",
    "write",
    "__iter__",
}


def public(face):
    """Return the public names that the face itself defines."""
    named = {name: getattr(face, name) for name in dir(face) if not name.startswith("_")}
    return {name for name, thing in named.items() if home(thing) == face.__name__}


def home(thing):
    """Return the face that defines it, or the module if none does."""
    module = getattr(thing, "__module__", None) or ""
    return next((face.__name__ for face in (blocking, aio) if module.startswith(f"{face.__name__}.")), module)


def members(kind):
    """Return public attributes, and the special methods that a face defines itself, under their blocking names."""
    found = {}
    hidden = internal(kind)
    for name, thing in inspect.getmembers_static(kind):
        if name in hidden:
            continue
        special = name.startswith("__") and home(thing) in {blocking.__name__, aio.__name__}
        if (special and callable(thing) and name not in {"__init__", "__class__"}) or not name.startswith("_"):
            found[AWAITED.get(name, name)] = thing
    return found


def internal(kind):
    """Return the names that are for the core only, though they have no underscore."""
    return {name for base in kind.__mro__ for name in vars(base).get("_internal", ())}


def shape(function):
    """Return names, kinds and defaults of the parameters: what a caller has to know."""
    parameters = inspect.signature(function).parameters.values()
    return [(parameter.name, parameter.kind, parameter.default) for parameter in parameters]


def suspends(function):
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def test_both_faces_have_the_same_public_names():
    """A reader who knows one face knows the other."""
    assert public(blocking) == public(aio) == {*CLASSES, "connect"}
    assert set(blocking.__all__) == set(aio.__all__) == public(blocking)


@pytest.mark.parametrize("name", CLASSES)
def test_the_classes_of_both_faces_have_the_same_members(name):
    """A method that one face lacks is a feature that its users miss."""
    one, other = members(getattr(blocking, name)), members(getattr(aio, name))

    assert one.keys() == other.keys()
    assert [key for key in one if isinstance(one[key], property) != isinstance(other[key], property)] == []


@pytest.mark.parametrize("name", CLASSES)
def test_the_methods_of_both_faces_have_the_same_parameters(name):
    """Names, order, kinds and defaults: hand-mirrored twins drift in exactly these."""
    one, other = members(getattr(blocking, name)), members(getattr(aio, name))
    functions = [key for key in one if isinstance(one[key], types.FunctionType)]

    assert {key: shape(one[key]) for key in functions} == {key: shape(other[key]) for key in functions}


@pytest.mark.parametrize("name", CLASSES)
def test_being_awaited_is_the_only_difference(name):
    """Nothing in the blocking face suspends; in the other, everything that may take time does."""
    one, other = members(getattr(blocking, name)), members(getattr(aio, name))
    functions = {key for key in one if isinstance(one[key], types.FunctionType)}
    shared = {key for key in functions if one[key] is other[key]}
    local = {key for key in functions if key.startswith("__") and key not in AWAITED.values()}

    assert [key for key in functions if suspends(one[key])] == []
    assert {key for key in functions if not suspends(other[key])} - shared - local <= NOTHING_TO_AWAIT
    assert {key for key in functions if suspends(other[key])} & NOTHING_TO_AWAIT <= BOTH_WAYS


def test_connect_has_the_same_parameters_in_both_faces():
    """One word, `await`, turns one program into the other."""
    assert shape(blocking.connect) == shape(aio.connect)
    assert inspect.iscoroutinefunction(aio.connect)
    assert not inspect.iscoroutinefunction(blocking.connect)


@pytest.mark.parametrize("name", CLASSES)
def test_every_public_member_has_a_docstring(name):
    """`help()` is the first page that many people read."""
    silent = [
        f"{face.__name__}.{name}.{key}"
        for face in (blocking, aio)
        for key, thing in members(getattr(face, name)).items()
        if not key.startswith("__") and key not in {"name", "candidate"} and not inspect.getdoc(thing)
    ]

    assert [key for key in silent if not key.endswith((".token", ".is_set"))] == []


def test_the_package_offers_what_it_lists():
    """Every listed name exists, is listed once and in order; the names of the blocking face are among them."""
    listed = {name: getattr(holdfast, name) for name in holdfast.__all__}
    listed |= {name: getattr(holdfast.types, name) for name in holdfast.types.__all__}

    assert sorted(set(holdfast.__all__)) == holdfast.__all__
    assert {*CLASSES, "connect"} <= listed.keys()
    assert all(listed[name] is getattr(blocking, name) for name in (*CLASSES, "connect"))


def test_every_error_of_the_table_can_be_imported_from_the_package():
    """`except holdfast.LeaseLost` must not need a second import."""
    errors = {
        name
        for name, thing in inspect.getmembers(holdfast.errors, inspect.isclass)
        if issubclass(thing, holdfast.HoldfastError)
    }

    assert errors - set(holdfast.__all__) <= {"ReplyLost", "UnreadableRecord"}


def test_the_guide_lists_what_is_not_awaited():
    """A program that awaits `check()`, or forgets to await `release()`, fails late: the list must be complete."""
    page = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    table = page.partition("are not coroutines:")[2].partition("\n\n| ")[2].partition("\n\n")[0]
    listed = set(re.findall(r"`(\w+)(?:\(\))?`", table))
    called = set(re.findall(r"`(\w+)\(\)`", table)) - {"wait"}
    plain, awaited = set(), set()
    for one in (getattr(aio, name) for name in aio.__all__ if inspect.isclass(getattr(aio, name))):
        for name, member in inspect.getmembers(one, inspect.isfunction):
            public_name = not name.startswith("_") and name not in internal(one)
            if one.__module__.startswith("holdfast.aio") and public_name:
                (awaited if inspect.iscoroutinefunction(member) else plain).add(name)

    assert plain <= listed
    assert called & awaited <= BOTH_WAYS

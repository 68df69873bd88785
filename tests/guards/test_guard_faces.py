"""Guards of both faces have the same interface; `Guard` is the rule with a memory, for your own resources."""

import inspect
import pickle

import pytest

from holdfast import Fenced, InvalidConfig, InvalidName, guards
from holdfast.aio import guards as aio_guards

CLASSES = ["FileGuard", "RedisGuard", "RowGuard", "SqlGuard"]


def members(kind):
    return {name: thing for name, thing in inspect.getmembers_static(kind) if not name.startswith("_")}


def shape(function):
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


def test_both_faces_have_the_same_guards():
    """A user of one face knows the other."""
    assert set(guards.__all__) == set(aio_guards.__all__) == {*CLASSES, "Bearer", "Guard", "Stamp"}
    assert [getattr(guards, name) for name in ("Bearer", "Guard", "Stamp")] == [
        getattr(aio_guards, name) for name in ("Bearer", "Guard", "Stamp")
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_being_awaited_is_the_only_difference_between_guards(name):
    """Names, order, kinds and defaults of all parameters are equal."""
    one, other = members(getattr(guards, name)), members(getattr(aio_guards, name))
    methods = [key for key in one if inspect.isfunction(one[key])]

    assert one.keys() == other.keys()
    assert shape(getattr(guards, name)) == shape(getattr(aio_guards, name))
    assert {key: shape(one[key]) for key in methods} == {key: shape(other[key]) for key in methods}
    assert methods != []
    assert not any(inspect.iscoroutinefunction(one[key]) for key in methods)
    assert all(inspect.iscoroutinefunction(other[key]) for key in methods)


def test_a_guard_for_your_own_resource_remembers_the_newest_fence():
    """A program can store its state with the resource and restore it later."""
    guard = guards.Guard("orders/42")
    guard.admit(guards.Stamp(5, "a"))
    guard.admit(guards.Stamp(5, "a"))
    guard.admit(guards.Stamp(7, "b"))

    for late in (guards.Stamp(6, "b"), guards.Stamp(7, "a")):
        with pytest.raises(Fenced) as refusal:
            guard.admit(late)
        assert (refusal.value.name, refusal.value.newest) == ("orders/42", 7)

    later = guards.Guard("orders/42", pickle.loads(pickle.dumps(guard.newest)))
    with pytest.raises(Fenced):
        later.admit(guards.Stamp(6, "b"))
    later.admit(guards.Stamp(7, "b"))


def test_a_guard_for_your_own_resource_refuses_invalid_input():
    """A name and a fence are checked when they are given."""
    with pytest.raises(InvalidName):
        guards.Guard("")
    for newest in (guards.Stamp(-1, "t"), guards.Stamp(5, ""), None):
        with pytest.raises(InvalidConfig):
            guards.Guard("x", newest)
    with pytest.raises(InvalidConfig):
        guards.Guard("x").admit("lease")

"""The options of a pool are checked before any I/O, and the error names the wrong one."""

import pytest

from holdfast import InvalidConfig, InvalidName
from holdfast.clock import duration_ms
from holdfast.core.pool.options import checked_items


def test_a_duplicate_item_is_found_quickly_in_a_long_list():
    """One look-up for each name: comparing each with all before it would take minutes for a long list."""
    with pytest.raises(InvalidConfig) as raised:
        checked_items([*map(str, range(200_000)), "199999"])
    assert (raised.value.setting, raised.value.value) == ("items", "199999")


@pytest.mark.parametrize("seconds", [-1, float("nan"), 10**9, "soon", True, None])
def test_an_error_about_a_cooldown_does_not_mention_waiting(seconds):
    """`None` is a timeout that never ends; a cooldown has an end."""
    with pytest.raises(InvalidConfig) as raised:
        duration_ms(seconds, setting="cool")
    assert raised.value.setting == "cool"
    assert "wait" not in str(raised.value)


def test_an_error_about_an_item_calls_it_an_item():
    """A reader of "a name" would look at the name of the pool."""
    with pytest.raises(InvalidName, match=r"^7 is refused: an item must be text"):
        checked_items(["a", 7])

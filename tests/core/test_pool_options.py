"""What is said about a pool is checked before anything is sent, and the refusal names what is wrong."""

import pytest

from holdfast import InvalidConfig, InvalidName
from holdfast.clock import duration_ms
from holdfast.core.pool.options import checked_items


def test_a_name_that_is_there_twice_is_found_in_a_list_of_any_length():
    """One look at each name. Compared with all before it, a long list would take minutes before it is refused."""
    with pytest.raises(InvalidConfig) as told:
        checked_items([*map(str, range(200_000)), "199999"])
    assert (told.value.setting, told.value.value) == ("items", "199999")


@pytest.mark.parametrize("seconds", [-1, float("nan"), 10**9, "soon", True, None])
def test_a_refused_cooldown_says_nothing_of_waiting(seconds):
    """`None` is a timeout that never ends; a cooldown has an end."""
    with pytest.raises(InvalidConfig) as told:
        duration_ms(seconds, setting="cool")
    assert told.value.setting == "cool"
    assert "wait" not in str(told.value)


def test_an_item_that_is_no_text_is_called_an_item():
    """Whoever reads of a name would look for that of the pool."""
    with pytest.raises(InvalidName, match=r"^7 is refused: an item must be text"):
        checked_items(["a", 7])

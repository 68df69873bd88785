"""`holdfast limit`: what a rate limit has counted, for people and for programs, and the reset."""

import json

import pytest

RATE = "3/hour; 9/day"
ARGUMENTS = (RATE, "ann smith", "--name", "logins")


@pytest.fixture
def limiter(tool):
    """A rate limit that a program uses."""
    return tool.client().limit(RATE, name="logins")


def test_show_prints_what_is_left_and_counts_nothing(tool, limiter):
    """People get a few lines, programs get JSON; the exit code says whether anything is left."""
    limiter.hit("ann smith", cost=2)

    people = tool.inside("limit", "show", *ARGUMENTS)
    answer = tool.json("limit", "show", *ARGUMENTS)

    assert people.code == 0
    for part in ("logins", "ann smith", "1 of 3"):
        assert part in people.out.decode()
    assert (answer["allowed"], answer["remaining"], answer["limit"], answer["key"]) == (True, 1, 3, "ann smith")
    assert limiter.hit("ann smith").remaining == 0
    used_up = tool.inside("limit", "show", *ARGUMENTS, "--json")
    assert used_up.code == 75
    assert json.loads(used_up.out)["retry_after"] > 3000
    assert "next in" in tool.inside("limit", "show", *ARGUMENTS).out.decode()


def test_reset_clears_the_count_of_one_key(tool, limiter):
    """Other keys of the same limit keep their counts."""
    limiter.hit("ann smith", cost=3)
    limiter.hit("bob", cost=3)

    done = tool.inside("limit", "reset", *ARGUMENTS)

    assert done.code == 0
    assert "ann smith" in done.out.decode()
    assert tool.json("limit", "reset", *ARGUMENTS) == {"name": "logins", "key": "ann smith", "reset": True}
    assert limiter.peek("ann smith").remaining == 3
    assert limiter.peek("bob").remaining == 0


def test_bad_arguments_and_an_unreachable_engine_have_their_exit_codes(tool, limiter):
    """The policy for programs (allow, deny, local) does not hide an unreachable engine from people."""
    limiter.hit("ann smith")

    assert tool.inside("limit", "show", "ten a day", "ann").code == 64
    assert tool.inside("limit", "show", RATE, "").code == 64
    assert tool.inside("limit", "show", RATE, "ann", "--method", "fixed").code == 64
    assert tool.inside("limit", "peel").code == 64
    with tool.place.unusable():
        reset = tool.start("limit", "reset", *ARGUMENTS)  # each waits before it gives up
        away = tool.inside("limit", "show", *ARGUMENTS)
        assert away.code == 69
        assert away.err.decode().startswith("holdfast: engine")
        assert reset.end().code == 69

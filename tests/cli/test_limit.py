"""What a limit has counted, for people and for programs: `limit show`, `limit reset`."""

import json

import pytest

RATE = "3/hour; 9/day"
WORDS = (RATE, "ann smith", "--name", "logins")


@pytest.fixture
def limiter(tool):
    """A limit that a program uses."""
    return tool.client().limit(RATE, name="logins")


def test_what_is_left_is_shown_and_looking_uses_nothing(tool, limiter):
    """For people a few lines, for programs JSON; the exit code says whether anything is left."""
    limiter.hit("ann smith", cost=2)

    people = tool.inside("limit", "show", *WORDS)
    told = tool.json("limit", "show", *WORDS)

    assert people.code == 0
    for words in ("logins", "ann smith", "1 of 3"):
        assert words in people.out.decode()
    assert (told["allowed"], told["remaining"], told["limit"], told["key"]) == (True, 1, 3, "ann smith")
    assert limiter.hit("ann smith").remaining == 0
    used_up = tool.inside("limit", "show", *WORDS, "--json")
    assert used_up.code == 75
    assert json.loads(used_up.out)["retry_after"] > 3000
    assert "next in" in tool.inside("limit", "show", *WORDS).out.decode()


def test_what_was_counted_is_forgotten_when_people_say_so(tool, limiter):
    """Only that key of that limit."""
    limiter.hit("ann smith", cost=3)
    limiter.hit("bob", cost=3)

    done = tool.inside("limit", "reset", *WORDS)

    assert done.code == 0
    assert "ann smith" in done.out.decode()
    assert tool.json("limit", "reset", *WORDS) == {"name": "logins", "key": "ann smith", "reset": True}
    assert limiter.peek("ann smith").remaining == 3
    assert limiter.peek("bob").remaining == 0


def test_bad_words_and_an_engine_that_is_away_are_told_by_their_codes(tool, limiter):
    """A policy answers programs; people are told what is wrong."""
    limiter.hit("ann smith")

    assert tool.inside("limit", "show", "ten a day", "ann").code == 64
    assert tool.inside("limit", "show", RATE, "").code == 64
    assert tool.inside("limit", "show", RATE, "ann", "--method", "fixed").code == 64
    assert tool.inside("limit", "peel").code == 64
    with tool.place.unusable():
        reset = tool.start("limit", "reset", *WORDS)  # each takes its time to give up
        away = tool.inside("limit", "show", *WORDS)
        assert away.code == 69
        assert away.err.decode().startswith("holdfast: engine")
        assert reset.end().code == 69

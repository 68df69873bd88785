"""`Retry` and `Reject` are words: what is kept of them is why they were said."""

import pytest

from holdfast import Reject, Retry
from holdfast.core.queue.outcomes import BACKOFF, outcome_of


def caught(say):
    """What leaves the work, as its message meets it."""
    with pytest.raises((Retry, Reject)) as said:
        say()
    return outcome_of("entry", 5, 5, BACKOFF, said.value)


def said_of_trouble(word, *cause):
    try:
        raise ConnectionError("the bank is away")
    except ConnectionError as error:
        if cause:
            raise word from cause[0]
        raise word from error


def said_in_trouble(word):
    try:
        raise ConnectionError("the bank is away")
    except ConnectionError:
        raise word  # noqa: B904 - people do


TROUBLE = "ConnectionError('the bank is away')"


@pytest.mark.parametrize("say", [said_of_trouble, said_in_trouble])
def test_what_a_word_was_said_for_is_kept(say):
    """Whoever reads the dead letter wants to know what failed: `Retry(5)` is what the program did about it."""
    assert caught(lambda: say(Retry(5))).error == TROUBLE
    dead = caught(lambda: say(Reject("no such bank")))
    assert (dead.reason, dead.error) == ("no such bank", TROUBLE)


def test_a_reason_that_was_given_is_the_reason():
    """The program knows better than its errors do; and what it hides stays hidden."""
    assert caught(lambda: said_of_trouble(Retry(5, "closed today"))).error == "closed today"
    assert caught(lambda: said_of_trouble(Reject("no such bank"), None)).error == ""


def test_a_word_without_any_reason_is_told_as_what_it_is():
    """And not as a piece of a program."""

    def say():
        raise Retry(5)

    assert caught(say).error == "another attempt was asked for"

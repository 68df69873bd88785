"""`Retry` and `Reject` are control-flow exceptions: a message stores their cause, not the exceptions themselves."""

import pytest

from holdfast import Reject, Retry
from holdfast.core.queue.outcomes import BACKOFF, outcome_of


def outcome(work):
    """Return the outcome of a message whose work raises."""
    with pytest.raises((Retry, Reject)) as raised:
        work()
    return outcome_of("entry", 5, 5, BACKOFF, raised.value)


def raised_from_an_error(exception, *cause):
    try:
        raise ConnectionError("the bank is away")
    except ConnectionError as error:
        if cause:
            raise exception from cause[0]
        raise exception from error


def raised_while_handling_an_error(exception):
    try:
        raise ConnectionError("the bank is away")
    except ConnectionError:
        raise exception  # noqa: B904 - people do


TROUBLE = "ConnectionError('the bank is away')"


@pytest.mark.parametrize("raises", [raised_from_an_error, raised_while_handling_an_error])
def test_a_message_stores_the_cause_of_retry_and_reject(raises):
    """The reader of a dead letter wants to know what failed: `Retry(5)` is what the program did about it."""
    assert outcome(lambda: raises(Retry(5))).error == TROUBLE
    rejected = outcome(lambda: raises(Reject("no such bank")))
    assert (rejected.reason, rejected.error) == ("no such bank", TROUBLE)


def test_a_given_reason_replaces_the_cause():
    """The program knows better than its errors do; and `from None` hides the cause."""
    assert outcome(lambda: raised_from_an_error(Retry(5, "closed today"))).error == "closed today"
    assert outcome(lambda: raised_from_an_error(Reject("no such bank"), None)).error == ""


def test_a_retry_without_a_reason_is_described_in_words():
    """The stored error is a sentence, and not the repr of an exception."""

    def work():
        raise Retry(5)

    assert outcome(work).error == "the handler requested another attempt"

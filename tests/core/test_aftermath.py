"""What a client makes of what it heard before its engine was replaced, told step by step."""

from holdfast.core.keeper.restart_guard import Aftermath


class Engine:
    """As much of an engine as counts here: how often it was replaced, and when that was noticed last."""

    restarts = restarted_ns = 0

    def replaced(self, now_ns):
        self.restarted_ns, self.restarts = now_ns, self.restarts + 1


def heard(aftermath, mark, *, sent, until, now):
    return aftermath.heard("x", mark, sent, until, now)


def test_what_was_heard_counts_once_the_engine_was_replaced():
    """Before that the engine's own word is newer."""
    engine = Engine()
    aftermath = Aftermath(engine)
    assert heard(aftermath, 7, sent=10, until=100, now=11)
    assert aftermath.until_ns("x") == 0
    engine.replaced(50)
    assert aftermath.until_ns("x") == 100
    assert aftermath.until_ns("y") == 0


def test_an_answer_that_is_read_after_the_replacement_may_be_older_than_it():
    """A thread or loop that was held up reads it late. Taken for the word of the new run it would let two in."""
    engine = Engine()
    aftermath = Aftermath(engine)
    engine.replaced(50)
    assert not heard(aftermath, 7, sent=10, until=100, now=60), "whoever asks again knows"
    assert aftermath.until_ns("x") == 100
    aftermath.renewed("x", 20, 120)
    assert aftermath.until_ns("x") == 120
    aftermath.renewed("x", 55, 200)  # the word of the new run says nothing of whom it forgot
    assert aftermath.until_ns("x") == 120

    assert heard(aftermath, 7, sent=61, until=130, now=62), "the same lease, so nothing was forgotten"
    assert aftermath.until_ns("x") == 0


def test_another_lease_does_not_hide_the_one_that_was_forgotten():
    """Neither for sure nor perhaps: the later end of the two is waited for."""
    engine = Engine()
    aftermath = Aftermath(engine)
    heard(aftermath, 7, sent=10, until=100, now=11)
    engine.replaced(50)
    assert heard(aftermath, 8, sent=60, until=70, now=61)
    assert aftermath.until_ns("x") == 100
    assert not heard(aftermath, 8, sent=40, until=90, now=62)
    assert aftermath.until_ns("x") == 100
    assert not heard(aftermath, 8, sent=40, until=140, now=63)
    assert aftermath.until_ns("x") == 140
    assert heard(aftermath, 9, sent=150, until=160, now=151)
    assert aftermath.until_ns("x") == 0


def test_a_grant_of_the_record_that_was_heard_of_is_taken():
    """A server that came back with its data has not forgotten anybody; how many were lent meanwhile does not matter."""
    engine = Engine()
    aftermath = Aftermath(engine)
    heard(aftermath, 7, sent=10, until=100, now=11)
    engine.replaced(50)
    assert aftermath.until_ns("x", life=7) == 0
    assert aftermath.until_ns("x", life=8) == 100
    aftermath.forgotten("item", 5, 90)
    assert aftermath.until_ns("item", "x", life=7) == 90

"""What a client makes of what it heard before its engine was replaced, told step by step."""

from holdfast.core.keeper.restart_guard import RestartGuard


class Engine:
    """As much of an engine as counts here: how often it was replaced, and when that was noticed last."""

    restarts = restarted_ns = 0

    def replaced(self, now_ns):
        self.restarted_ns, self.restarts = now_ns, self.restarts + 1


def heard(restart_guard, version, *, sent, until, now):
    return restart_guard.remember("x", version, sent, until, now)


def test_what_was_heard_counts_once_the_engine_was_replaced():
    """Before that the engine's own word is newer."""
    engine = Engine()
    restart_guard = RestartGuard(engine)
    assert heard(restart_guard, 7, sent=10, until=100, now=11)
    assert restart_guard.until_ns("x") == 0
    engine.replaced(50)
    assert restart_guard.until_ns("x") == 100
    assert restart_guard.until_ns("y") == 0


def test_an_answer_that_is_read_after_the_replacement_may_be_older_than_it():
    """A thread or loop that was held up reads it late. Taken for the word of the new run it would let two in."""
    engine = Engine()
    restart_guard = RestartGuard(engine)
    engine.replaced(50)
    assert not heard(restart_guard, 7, sent=10, until=100, now=60), "whoever asks again knows"
    assert restart_guard.until_ns("x") == 100
    restart_guard.renewed("x", 20, 120)
    assert restart_guard.until_ns("x") == 120
    restart_guard.renewed("x", 55, 200)  # the word of the new run says nothing of whom it forgot
    assert restart_guard.until_ns("x") == 120

    assert heard(restart_guard, 7, sent=61, until=130, now=62), "the same lease, so nothing was forgotten"
    assert restart_guard.until_ns("x") == 0


def test_another_lease_does_not_hide_the_one_that_was_forgotten():
    """Neither for sure nor perhaps: the later end of the two is waited for."""
    engine = Engine()
    restart_guard = RestartGuard(engine)
    heard(restart_guard, 7, sent=10, until=100, now=11)
    engine.replaced(50)
    assert heard(restart_guard, 8, sent=60, until=70, now=61)
    assert restart_guard.until_ns("x") == 100
    assert not heard(restart_guard, 8, sent=40, until=90, now=62)
    assert restart_guard.until_ns("x") == 100
    assert not heard(restart_guard, 8, sent=40, until=140, now=63)
    assert restart_guard.until_ns("x") == 140
    assert heard(restart_guard, 9, sent=150, until=160, now=151)
    assert restart_guard.until_ns("x") == 0


def test_a_grant_of_the_record_that_was_heard_of_is_taken():
    """A server that came back with its data has not forgotten anybody; how many were lent meanwhile does not matter."""
    engine = Engine()
    restart_guard = RestartGuard(engine)
    heard(restart_guard, 7, sent=10, until=100, now=11)
    engine.replaced(50)
    assert restart_guard.until_ns("x", life=7) == 0
    assert restart_guard.until_ns("x", life=8) == 100
    restart_guard.forgotten("item", 5, 90)
    assert restart_guard.until_ns("item", "x", life=7) == 90

"""A client remembers the holders that it saw before its engine restarted, step by step."""

from holdfast.core.keeper.restart_guard import RestartGuard


class Engine:
    """As much of an engine as the guard uses: how often it restarted, and when that was noticed last."""

    restarts = restarted_ns = 0

    def restart(self, now_ns):
        self.restarted_ns, self.restarts = now_ns, self.restarts + 1


def remember(guard, version, *, sent, until, now):
    return guard.remember("x", version, sent, until, now)


def test_a_known_holder_counts_once_the_engine_has_restarted():
    """Before that, the answers of the engine are newer."""
    engine = Engine()
    guard = RestartGuard(engine)
    assert remember(guard, 7, sent=10, until=100, now=11)
    assert guard.until_ns("x") == 0
    engine.restart(50)
    assert guard.until_ns("x") == 100
    assert guard.until_ns("y") == 0


def test_an_answer_read_after_a_restart_may_be_from_before_it():
    """A thread or loop that was held up reads it late. Taken as an answer after the restart, it would let two in."""
    engine = Engine()
    guard = RestartGuard(engine)
    engine.restart(50)
    assert not remember(guard, 7, sent=10, until=100, now=60), "the caller should send its command again"
    assert guard.until_ns("x") == 100
    guard.renewed("x", 20, 120)
    assert guard.until_ns("x") == 120
    guard.renewed("x", 55, 200)  # an answer after the restart says nothing of the holder that was forgotten
    assert guard.until_ns("x") == 120

    assert remember(guard, 7, sent=61, until=130, now=62), "the same lease, so nothing was forgotten"
    assert guard.until_ns("x") == 0


def test_another_lease_does_not_hide_the_forgotten_one():
    """The guard waits for the later end of the two, also if the answer may be older than the restart."""
    engine = Engine()
    guard = RestartGuard(engine)
    remember(guard, 7, sent=10, until=100, now=11)
    engine.restart(50)
    assert remember(guard, 8, sent=60, until=70, now=61)
    assert guard.until_ns("x") == 100
    assert not remember(guard, 8, sent=40, until=90, now=62)
    assert guard.until_ns("x") == 100
    assert not remember(guard, 8, sent=40, until=140, now=63)
    assert guard.until_ns("x") == 140
    assert remember(guard, 9, sent=150, until=160, now=151)
    assert guard.until_ns("x") == 0


def test_a_grant_by_the_record_that_named_the_holder_is_taken():
    """A server that came back with its data has forgotten no holder, however many items were lent meanwhile."""
    engine = Engine()
    guard = RestartGuard(engine)
    remember(guard, 7, sent=10, until=100, now=11)
    engine.restart(50)
    assert guard.until_ns("x", life=7) == 0
    assert guard.until_ns("x", life=8) == 100
    guard.forgotten("item", 5, 90)
    assert guard.until_ns("item", "x", life=7) == 90

"""What an engine promises is a value, and what it cannot promise is shown by a test."""

import json
import pickle
import re

import pytest

from holdfast import Caveat, Closed, InvalidConfig, Promise, PromiseNotKept
from holdfast.engines import Capability


@pytest.mark.large
def test_an_engine_says_what_may_be_relied_on(face):
    """Printed for people, compared by programs, the same through both faces.

    Fences grow where one clock makes them; another server that takes a place brings another.
    """
    client, other = face.connect(), face.connect()
    promise = client.promise()

    assert isinstance(promise, Promise)
    assert promise == other.promise()
    assert promise.engine == face.place.engine
    assert promise.scope in ("process", "host", "hosts")
    assert promise.fifo
    assert face.place.fences_grow in (None, promise.fences_grow)
    assert promise.reasons != ()
    fences = "only grow" if promise.fences_grow else "may repeat or go back"
    for word in (promise.engine, promise.scope, promise.level, "first in, first out", fences):
        assert word in str(promise)
    for limit in promise.caveats:
        assert isinstance(limit, Caveat)
        assert limit.sentence in str(promise)


def test_a_promise_can_be_read_by_programs(face):
    """`as_dict` is JSON as it stands, and says all that is printed."""
    promise = face.connect().promise()
    told = json.loads(json.dumps(promise.as_dict()))

    assert told["level"] == promise.level
    assert told["caveats"] == [limit._asdict() for limit in promise.caveats]
    assert told.keys() == {*promise._fields}


def test_a_client_can_require_what_the_engine_promises(face):
    """Whoever requires no more than there is gets a client; the words may stand alone or together."""
    promise = face.connect().promise()

    several = [promise.level, promise.scope, "fifo", *(["fences grow"] if promise.fences_grow else [])]
    for words in (promise.level, promise.scope, several, ()):
        with face.connect(require=words).lock("x", timeout=0):
            pass


def test_an_engine_that_cannot_carry_a_requirement_is_refused(face):
    """Before any lease is given out, with what is missing; nothing stays open, and the error can be passed on."""
    with pytest.raises(PromiseNotKept) as refusal:
        face.connect(require=("process", "survives failover"))

    error = pickle.loads(pickle.dumps(refusal.value))
    assert error.missing == ("survives failover",)
    assert error.promise == face.connect().promise()
    assert str(error) == str(refusal.value)
    assert error.promise.level in str(error)


def test_a_refusal_sends_nobody_in_a_circle(face):
    """What no engine has is said to be so, with what there is instead; else an engine that has it is named."""
    with pytest.raises(PromiseNotKept) as failover:
        face.connect(require="survives failover")
    told = str(failover.value).partition("To change: ")[2]

    assert told.startswith("no engine promises this")
    assert 'confirm="replicas"' in told
    assert "append" not in told
    for word in ("host", "hosts", "survives client faults", "survives restart", "fences grow", "fifo"):
        try:
            face.connect(require=word)
        except PromiseNotKept as error:
            advice = str(error).partition("To change: ")[2]
            assert re.search("sqlite://|redis://|set |make sure", advice), (word, advice)


@pytest.mark.parametrize("wrong", ["anything", "", ("hosts", "always"), 7])
def test_a_requirement_that_nobody_knows_is_refused(engine, wrong):
    """It would be one that always holds."""
    with pytest.raises(InvalidConfig):
        engine.connect(require=wrong)


def test_a_closed_client_promises_nothing(face):
    """There is nothing to look at any more."""
    client = face.connect()
    client.close()

    with pytest.raises(Closed):
        client.promise()


def test_only_an_engine_with_replicas_takes_a_confirmation(face):
    """On the others it is refused when the lock is made; so is a word that nobody knows, on all of them."""
    client = face.connect()

    if Capability.REPLICAS in client._client.engine.capabilities:
        client.lock("x", confirm="replicas")
    else:
        with pytest.raises(InvalidConfig) as refusal:
            client.lock("x", confirm="replicas")
        assert "has no replicas" in str(refusal.value)
        with pytest.raises(InvalidConfig):
            client.leader("x", confirm="replicas")
    with pytest.raises(InvalidConfig):
        client.lock("x", confirm="all")


@pytest.mark.large
def test_where_the_servers_are_may_be_learned_anew_at_any_time(face):
    """An engine of one place has nothing to learn and says so by doing nothing; a closed client learns no more."""
    client = face.connect()
    client.refresh_topology()
    with client.lock("x", ttl=5) as lease:
        client.refresh_topology()
        lease.check()
    client.close()

    with pytest.raises(Closed):
        client.refresh_topology()

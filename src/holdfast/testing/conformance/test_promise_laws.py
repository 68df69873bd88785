"""The promise of an engine is a value, and a test shows each of its limits."""

import json
import pickle
import re

import pytest

from holdfast import Caveat, Closed, InvalidConfig, Promise, PromiseNotKept
from holdfast.engines import Capability


@pytest.mark.large
def test_an_engine_returns_its_promise(face):
    """People print it, programs compare it, and both faces return the same.

    Fences grow where one clock makes them; another server that takes a place brings another.
    """
    client, other = face.connect(), face.connect()
    promise = client.promise()

    assert isinstance(promise, Promise)
    assert promise == other.promise()
    assert promise.engine == face.place.engine
    assert promise.scope in ("process", "host", "hosts")
    declared = "fifo" not in face.place.lacks
    assert promise.fifo is declared, (
        f"promise().fifo is {promise.fifo}, but the engine {'declares' if declared else 'does not declare'} "
        "Capability.FIFO; change one of them"
    )
    assert face.place.fences_grow in (None, promise.fences_grow)
    assert promise.reasons != ()
    order = "first in, first out" if promise.fifo else "in no promised order"
    fences = "only grow" if promise.fences_grow else "may repeat or go back"
    for word in (promise.engine, promise.scope, promise.level, order, fences):
        assert word in str(promise)
    for limit in promise.caveats:
        assert isinstance(limit, Caveat)
        assert limit.sentence in str(promise)


def test_a_promise_is_readable_for_programs(face):
    """`as_dict` is valid JSON and contains everything that is printed."""
    promise = face.connect().promise()
    data = json.loads(json.dumps(promise.as_dict()))

    assert data["level"] == promise.level
    assert data["caveats"] == [limit._asdict() for limit in promise.caveats]
    assert data.keys() == {*promise._fields}


def test_a_client_can_require_a_kept_promise(face):
    """A client opens if the engine meets the requirement, given as one word or several."""
    promise = face.connect().promise()

    several = [
        *(promise.level, promise.scope),
        *(["fifo"] if promise.fifo else []),
        *(["fences grow"] if promise.fences_grow else []),
    ]
    for words in (promise.level, promise.scope, several, ()):
        with face.connect(require=words).lock("x", timeout=0):
            pass


def test_an_engine_below_the_requirement_is_refused(face):
    """The refusal comes before any grant and names the gap; nothing stays open, and the error can be pickled."""
    with pytest.raises(PromiseNotKept) as refusal:
        face.connect(require=("process", "survives failover"))

    error = pickle.loads(pickle.dumps(refusal.value))
    assert error.missing == ("survives failover",)
    assert error.promise == face.connect().promise()
    assert str(error) == str(refusal.value)
    assert error.promise.level in str(error)


def test_a_refusal_gives_advice_that_helps(face):
    """If no engine meets the requirement, the error says so and names the alternative; otherwise it names an engine."""
    with pytest.raises(PromiseNotKept) as failover:
        face.connect(require="survives failover")
    advice = str(failover.value).partition("To change: ")[2]

    assert advice.startswith("no engine promises this")
    assert 'confirm="replicas"' in advice
    assert "append" not in advice
    for word in ("host", "hosts", "survives client faults", "survives restart", "fences grow", "fifo"):
        try:
            face.connect(require=word)
        except PromiseNotKept as error:
            advice = str(error).partition("To change: ")[2]
            assert re.search("sqlite://|redis://|set |make sure", advice), (word, advice)


@pytest.mark.parametrize("wrong", ["anything", "", ("hosts", "always"), 7])
def test_an_unknown_requirement_is_refused(engine, wrong):
    """An unknown word would always hold."""
    with pytest.raises(InvalidConfig):
        engine.connect(require=wrong)


def test_a_closed_client_promises_nothing(face):
    """A closed client has no engine to inspect."""
    client = face.connect()
    client.close()

    with pytest.raises(Closed):
        client.promise()


def test_only_an_engine_with_replicas_accepts_confirm(face):
    """Other engines refuse `confirm` when the lock is made; all engines refuse an unknown value."""
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
def test_the_topology_can_be_refreshed_at_any_time(face):
    """An engine with one location does nothing; a closed client raises `Closed`."""
    client = face.connect()
    client.refresh_topology()
    with client.lock("x", ttl=5) as lease:
        client.refresh_topology()
        lease.check()
    client.close()

    with pytest.raises(Closed):
        client.refresh_topology()

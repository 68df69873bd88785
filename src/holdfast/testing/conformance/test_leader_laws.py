"""Leader election: one candidate leads, the others wait in order, and a term starts after the last one's work ended."""

import time

import pytest

from holdfast import Closed, LeaseLost, NotAcquired, NotFound, NotOwner
from holdfast.commands import Acquire, ReleaseLease, Renew
from holdfast.testing import eventually
from holdfast.testing.conformance.faces import together, until_waiters


class Election:
    """Candidates that lead until their term is over, and record the events."""

    def __init__(self, face, ttl=10):
        self.face, self.ttl = face, ttl
        self.watcher = face.connect()
        self.candidates, self.running, self.story = {}, {}, []
        self.clean_up_s = 0.0

    def stand(self, name, client=None):
        client = client or self.face.connect()
        self.candidates[name] = client.leader("x", ttl=self.ttl, timeout=20, candidate=name)
        self.running[name] = self.face.start(self.candidates[name].run, self.lead)

    def lead(self, term):
        name = term.holder.label
        self.story.append(("leads", name, term.fence))
        term.over.wait()
        time.sleep(self.clean_up_s)
        self.story.append(("ended", name, term.fence))
        return f"{name} is done"

    def leads(self, name):
        eventually(lambda: ("leads", name) in self.order())
        return self.candidates[name].current()

    def stood(self, count):
        until_waiters(self.watcher, "x", count)

    def order(self):
        return [(what, who) for what, who, _ in self.story]


def test_one_leads_and_the_others_follow_in_order(face):
    """Each candidate starts when its predecessor has resigned and its work has ended; the fences grow."""
    election = Election(face)
    for number, name in enumerate(("ann", "bob", "cid")):
        election.stand(name)
        election.leads("ann")
        election.stood(number)
    assert election.candidates["ann"].candidates() == ["bob", "cid"]
    assert election.candidates["ann"].name == "x"

    for name in ("ann", "bob", "cid"):
        now = election.leads(name)
        assert now.holder.label == name
        assert now.seconds >= 0
        election.candidates[name].resign()
        assert election.running[name].result() == f"{name} is done"

    assert election.order() == [(what, name) for name in ("ann", "bob", "cid") for what in ("leads", "ended")]
    fences = [fence for _, _, fence in election.story]
    assert fences == sorted(fences)
    assert len(set(fences)) == 3
    assert election.candidates["ann"].current() is None


@together
def test_the_next_term_starts_only_when_the_work_has_ended(face):
    """`resign` asks the work to end; the release follows when the work has ended."""
    election = Election(face)
    election.clean_up_s = 0.3
    election.stand("ann")
    election.leads("ann")
    election.stand("bob")
    election.stood(1)

    election.candidates["ann"].resign()
    time.sleep(0.15)
    assert election.candidates["bob"].current().candidate == "ann"

    election.leads("bob")
    assert election.order()[:3] == [("leads", "ann"), ("ended", "ann"), ("leads", "bob")]
    election.clean_up_s = 0
    election.candidates["bob"].resign()
    election.running["bob"].result()


def test_a_handed_over_term_skips_the_waiting_line(face):
    """The named candidate is next, ahead of earlier waiters; the others keep their places."""
    election = Election(face)
    for number, name in enumerate(("ann", "bob", "cid")):
        election.stand(name)
        election.leads("ann")
        election.stood(number)

    election.candidates["ann"].hand_over(to="cid")
    election.leads("cid")
    assert election.candidates["cid"].candidates() == ["bob"]
    election.candidates["cid"].resign()
    election.leads("bob")
    election.candidates["bob"].resign()
    for running in election.running.values():
        running.result()

    assert [who for what, who in election.order() if what == "leads"] == ["ann", "cid", "bob"]


def test_a_term_can_be_handed_only_to_a_waiting_candidate(face):
    """An absent candidate would leave no leader, so the term continues."""
    election = Election(face)
    election.stand("ann")
    election.leads("ann")

    with pytest.raises(NotFound) as refusal:
        election.candidates["ann"].hand_over(to="absent")

    assert "absent" in str(refusal.value)
    time.sleep(0.05)
    assert election.order() == [("leads", "ann")]
    election.candidates["ann"].resign()
    election.running["ann"].result()


def test_a_follower_resigns_without_effect_and_cannot_hand_over(face):
    """Before and after a term, and beside it, `resign` does nothing: a shutdown need not know who leads."""
    client = face.connect()
    leader, other = client.leader("x", candidate="ann"), client.leader("x", candidate="bob")
    other.resign()
    with leader as term:
        other.resign()
        assert not term.over
        with pytest.raises(NotOwner) as refusal:
            other.hand_over(to="ann")
        assert "bob" in str(refusal.value)
    leader.resign()
    with leader as term:
        assert not term.over
    with pytest.raises(NotOwner):
        leader.hand_over(to="bob")


def test_a_kept_leader_leads_again_after_a_loss_until_the_client_closes(face):
    """A loss ends a term, not the candidacy; `close()` sets `over` and ends the loop without an error."""
    client, operator = face.connect(), face.connect()
    terms = []

    def work(term):
        terms.append(term.fence)
        term.over.wait()

    keeping = face.start(client.leader("x", ttl=2, candidate="ann").keep, work)
    for count in (1, 2):
        eventually(lambda n=count: len(terms) == n, 20)
        if count == 1:
            operator.break_lease("x", "by an operator")
    began = time.monotonic()
    assert client.close() == ()
    assert keeping.result(5) is None
    assert time.monotonic() - began < 1
    assert terms == sorted(set(terms))
    assert operator.show("x").holder is None


def test_a_kept_leader_leads_again_after_an_outage(face):
    """An engine that does not answer ends no candidacy: the leader tries again, with growing pauses."""
    client = face.connect()
    wire = face.wire(client)
    wire.fail(Acquire)
    leader = client.leader("x", ttl=2)
    terms = []

    def work(term):
        terms.append(term.fence)
        leader.stop()

    keeping = face.start(leader.keep, work)
    eventually(lambda: len(wire.commands(Acquire)) >= 3, 20, "three attempts")
    assert terms == []
    wire.heal()
    assert keeping.result() is None
    assert len(terms) == 1


def test_an_error_of_the_work_ends_keep_and_reaches_the_caller(face):
    """A broken work must not be started again and again without anyone noticing."""
    client = face.connect()
    calls = []

    def work(term):
        calls.append(term.fence)
        raise ZeroDivisionError("the work is broken")

    with pytest.raises(ZeroDivisionError):
        client.leader("x").keep(work)
    assert len(calls) == 1
    assert client.show("x").holder is None


@pytest.mark.parametrize("error", [NotAcquired("inner"), Closed()], ids=["NotAcquired", "Closed"])
def test_an_error_of_another_lock_in_the_work_ends_keep(face, error):
    """The work's own `NotAcquired` or `Closed` must not look like the timeout or the end of the election."""
    calls = []

    def work(term):
        calls.append(term.fence)
        raise error

    with pytest.raises(type(error)):
        face.connect().leader("x").keep(work)
    assert len(calls) == 1


def test_a_stopped_candidate_stands_no_more(face):
    """`stop` may come before the candidate begins to wait: it must not wait then."""
    client, other = face.connect(), face.connect()
    leader = client.leader("x", candidate="ann")
    leader.stop()
    with other.lock("x"), pytest.raises(Closed, match="this candidate was stopped"):
        leader.run(lambda term: term.fence)
    with client.lock("y") as lease:
        lease.check()


def test_leading_keeps_a_candidate_during_a_block(face):
    """The work leads beside the block; the end of the block ends the term, also that of a waiting candidate."""
    first, second = face.connect(), face.connect()
    terms = []

    def work(term):
        terms.append(term.holder.label)
        term.over.wait()

    with first.leading("x", work, candidate="ann"):
        eventually(lambda: terms == ["ann"])
        with second.leading("x", work, candidate="bob"):
            until_waiters(first, "x", 1)
        eventually(lambda: first.show("x").waiters == ())
        assert first.leader("x").current().candidate == "ann"
    assert terms == ["ann"]
    assert first.show("x").holder is None


def test_leading_raises_the_error_of_its_work_at_the_end_of_the_block(face):
    """The block itself is not interrupted."""
    client = face.connect()
    reached = []

    def work(term):
        raise ZeroDivisionError(term.fence)

    with pytest.raises(ZeroDivisionError), client.leading("x", work):
        eventually(lambda: client.show("x").fence > 0 and client.show("x").holder is None)
        reached.append(True)
    assert reached == [True]


@together
def test_a_leader_knows_of_its_loss_before_its_successor_starts(face):
    """A loss sets `over` too, and the observer gets the loss of the term."""
    # The margin is a twentieth of the ttl; a busy machine may report the loss that late.
    election = Election(face, ttl=5)
    client = face.connect()
    wire = face.wire(client)
    election.stand("ann", client)
    election.leads("ann")
    election.stand("bob")
    election.stood(1)

    wire.fail(Renew)

    assert isinstance(election.running["ann"].error(), LeaseLost)
    assert election.running["ann"].error().result == "ann is done"
    election.leads("bob")
    assert election.order() == [("leads", "ann"), ("ended", "ann"), ("leads", "bob")]
    election.candidates["bob"].resign()
    election.running["bob"].result()


@together
def test_a_broken_leader_sees_that_its_term_is_over(face):
    """After a break by an operator the work sees the same event object."""
    election = Election(face, ttl=0.6)
    election.stand("ann")
    election.leads("ann")

    election.watcher.break_lease("x", "a new election")

    error = election.running["ann"].error()
    assert isinstance(error, LeaseLost)
    assert (error.reason, error.detail, error.result) == ("broken", "a new election", "ann is done")


def test_observers_of_an_election_see_every_leader_in_order(face):
    """`observe` yields the leader now and after every change; it may skip the time between two terms."""
    client = face.connect()
    ann, bob = client.leader("x", candidate="ann"), client.leader("x", candidate="bob")
    looks = client.leader("x").observe(interval=0.02)

    seen = [next(looks)]
    with ann as term:
        seen.append(next(looks))
        first = term.fence
    seen.append(next(looks))
    with bob:
        seen.append(next(looks))
    looks.close()

    assert [now and now.candidate for now in seen] == [None, "ann", None, "bob"]
    assert seen[1].fence == first < seen[3].fence


def test_a_candidate_with_an_offer_does_not_lead_yet(face):
    """Between two terms there is no leader: a candidate leads when it has confirmed its offer."""
    client, peer = face.connect(), face.peer()
    leader = client.leader("x", candidate="ann")
    with leader:
        peer.say(Acquire("x", "token", "", 30_000, wait=True))

    assert leader.current() is None
    assert leader.candidates() == []
    peer.say(Acquire("x", "token", "", 30_000, wait=True))
    assert leader.current() is not None
    peer.say(ReleaseLease("x", "token"))


def test_the_work_of_a_leader_gives_its_result_or_its_error(face):
    """`run` is a block in one line."""
    client = face.connect()
    leader = client.leader("x", candidate="ann")

    assert leader.run(lambda term: ("led under", term.fence))[0] == "led under"
    with pytest.raises(ZeroDivisionError):
        leader.run(lambda _: 1 // 0)

    assert leader.current() is None
    with leader as term:
        assert not term.over
        term.check()
        assert leader.current().fence == term.fence
    assert not term.lost


def test_a_candidate_without_a_name_is_called_after_its_process(face):
    """`hand_over` always has a name for a candidate."""
    labelled, plain = face.connect(label="worker 7"), face.connect()

    assert labelled.leader("x").candidate == "worker 7"
    assert str(plain._client.holder.pid) in plain.leader("x").candidate
    with plain.leader("x") as term:
        assert plain.leader("x").current().candidate == term.holder.label == plain.leader("x").candidate

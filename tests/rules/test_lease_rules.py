"""The rules of a lease under random programs: what must hold after every step, whatever comes before it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.commands import Acquire, Break, Busy, Granted, ReleaseLease, Renew, Undo, WaiterHeartbeat
from holdfast.rules import Moment, Record
from holdfast.rules.lease import OFFER_MAX_US, advance
from holdfast.rules.table import RULES

TTL_MS = 1_000
TOKENS = ("t1", "t2", "t3", "t4")
CLIENT_OF = {"t1": "a", "t2": "a", "t3": "b", "t4": "c"}
MS = 1_000

few = st.sampled_from([*[frozenset()] * 20, frozenset("a"), frozenset("b"), frozenset("c")])
steps = st.lists(
    st.tuples(
        st.sampled_from(("acquire", "wait", "wait", "wait", "renew", "release", "undo", "break", "heartbeat")),
        st.sampled_from(TOKENS),
        st.sampled_from((0, 0, 0, 1, 1, 300, 999, 1_000, 1_001, 6_000)),  # milliseconds that pass before it
        few,  # proven dead
        few,  # without a recent heartbeat
    ),
    max_size=40,
)


def command_for(kind, token, record):
    fence = record.holder.fence if record.holder else 0
    return {
        "acquire": Acquire("n", token, "o", TTL_MS, wait=False),
        "wait": Acquire("n", token, "o", TTL_MS, wait=True),
        "renew": Renew("n", token, TTL_MS),
        "release": ReleaseLease("n", token),
        "undo": Undo("n", token),
        "break": Break("n", fence, "why"),
        "heartbeat": WaiterHeartbeat("n"),
    }[kind]


def program(script):
    """Run the script, and yield every step as (before, command, moment, step)."""
    record, now_us = Record(), 1_000_000_000
    for kind, token, passes_ms, gone, silent in script:
        now_us += passes_ms * MS
        client = CLIENT_OF[token]
        moment = Moment(now_us, now_us, client, gone - {client}, silent - {client})
        command = command_for(kind, token, record)
        step = RULES[type(command)].apply(record, command, moment)
        yield record, command, moment, step
        record = step.record


@settings(max_examples=400, deadline=None)
@given(steps)
def test_fences_only_grow_and_no_two_grants_share_one(script):
    """A resource that compares fences can tell any two holders apart, for ever."""
    newest, token_of = 0, {}
    for before, command, _, step in program(script):
        assert step.record.fence >= before.fence
        if isinstance(step.answer, Granted):
            token = token_of.setdefault(step.answer.fence, command.token)
            assert token == command.token
            assert step.answer.fence >= newest
            newest = step.answer.fence


@settings(max_examples=400, deadline=None)
@given(steps)
def test_no_command_of_another_token_ends_a_held_lease(script):
    """Only its own token, force, proof of death or the end of its ttl ends a lease."""
    for before, command, moment, step in program(script):
        held = before.holder
        if held is None or held.offered or held.expires_us <= moment.now_us or held.client in moment.gone:
            continue
        ended = step.record.holder is None or step.record.holder.token != held.token
        by_itself = isinstance(command, ReleaseLease | Undo) and command.token == held.token
        assert not ended or by_itself or isinstance(command, Break)


@settings(max_examples=400, deadline=None)
@given(steps)
def test_a_live_waiter_is_never_forgotten(script):
    """It waits, has an offer, or ended by its own command; a missed offer only costs its place."""
    waiting = set()
    for before, command, moment, step in program(script):
        after = step.record
        dead = moment.gone | moment.silent
        waiting = {token for token in waiting if CLIENT_OF[token] not in dead}
        if isinstance(command, Acquire):
            waiting.discard(command.token)
            if command.wait and isinstance(step.answer, Busy):
                waiting.add(command.token)
        if isinstance(command, Undo | ReleaseLease):
            waiting.discard(command.token)
        if isinstance(command, Break) and before.holder is not None:
            waiting.discard(before.holder.token)
        known = {waiter.token for waiter in after.waiters} | ({after.holder.token} if after.holder else set())
        assert waiting <= known


@settings(max_examples=400, deadline=None)
@given(steps)
def test_a_grant_never_overtakes_the_waiting_line(script):
    """The new holder was the first in line, or the line had no live waiter."""
    for before, command, moment, step in program(script):
        if not isinstance(step.answer, Granted):
            continue
        now = advance(before, moment)
        assert now.holder is None or now.holder.token == command.token
        assert now.holder is not None or not now.waiters


@settings(max_examples=200, deadline=None)
@given(steps)
def test_an_offer_is_short_and_a_free_name_has_no_waiters(script):
    """An offer to a process that sleeps must not delay the others for a whole ttl, and a free name has no waiters."""
    for _, _, moment, step in program(script):
        holder = step.record.holder
        if holder is not None and holder.offered:
            assert holder.expires_us <= moment.now_us + OFFER_MAX_US
        assert holder is not None or not step.record.waiters


@settings(max_examples=200, deadline=None)
@given(steps)
def test_every_command_may_be_sent_twice(script):
    """The second copy of a command, at the same moment, changes nothing that a client could see."""
    for before, command, moment, step in program(script):
        if isinstance(command, Break):
            continue  # the second copy finds the lease ended, and answers that
        again = RULES[type(command)].apply(step.record, command, moment)

        assert type(again.answer) is type(step.answer), (before, command)
        assert again.record.holder == step.record.holder
        assert again.record.waiters == step.record.waiters


def silent_waiter_beside_a_command_of_the_holder():
    """A silent waiter stays in line until a command advances the record; the holder's own command does not."""
    none, b = frozenset(), frozenset("b")
    waits = [("acquire", "t2", 0, none, none), ("wait", "t3", 0, none, none), ("wait", "t1", 0, none, none)]
    return [*waits, ("acquire", "t2", 0, none, b)]


@settings(max_examples=400, deadline=None)
@given(steps)
@example(silent_waiter_beside_a_command_of_the_holder())
def test_the_waiting_line_keeps_its_order_and_serves_its_first(script):
    """First in, first out: a newcomer goes to the end of the line, and an offer goes to its first live waiter."""
    for before, _, _, step in program(script):
        line = [waiter.token for waiter in before.waiters]
        after = [waiter.token for waiter in step.record.waiters]
        kept = [token for token in line if token in after]
        offered = step.record.holder

        assert after[: len(kept)] == kept
        if offered is not None and offered.offered and offered.token in line:
            assert not [token for token in line[: line.index(offered.token)] if token in after]

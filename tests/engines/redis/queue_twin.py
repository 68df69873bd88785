"""Run the scripts of queues and their rules side by side, under a clock that a test moves: see script_twin.py.

After each step another client inspects the queue on both sides: statistics, consumers, the messages of each place, the
keys of each consumer, dead letters, and every few steps the consistency check. Entries have different names on each
side; the twin knows which are the same.
"""

import hashlib
from dataclasses import dataclass
from functools import partial
from typing import Any

from script_twin import BETWEEN, START_US, Difference

from holdfast import config
from holdfast.commands.queue import (
    ConsumerHeartbeat,
    GetDeadLetter,
    Join,
    Leave,
    ListDeadLetters,
    ListDeadPositions,
    ListKeys,
    MessageOutcome,
    NewMessage,
    OutcomesRecorded,
    Publish,
    Purge,
    Receive,
    Received,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)
from holdfast.commands.queue_admin import PAGE, QUEUES, CheckConsistency, GetStats, ListConsumers, Peek
from holdfast.core.queue.queue import check_consistency
from holdfast.core.step import run
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import PREFIX, record_key
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.rules import Moment
from holdfast.rules.queue.memory_state import MemoryQueueState
from holdfast.rules.table import RULES, RuleKind, commands_of

NAME = "one queue"
MEMORY_MS = 60_000
CLIENTS = ("a", "b", "c")
STRANGER = "stranger"
MANY = 9
CHECK_EVERY = 8
# The commands that inspect the queue after each step.
INSPECTIONS = (
    GetStats(NAME),
    ListConsumers(NAME, 200),
    ListDeadLetters(NAME, "", 200),
    ListDeadPositions(NAME, "", 200),
    Peek(NAME, "ready", 200),
    Peek(NAME, "ready", 200, "high"),
    Peek(NAME, "ready", 200, "low"),
    Peek(NAME, "ready", 200, "!"),
    Peek(NAME, "delayed", 200),
    Peek(NAME, "held", 200),
    Peek(NAME, "behind", 200),
    Peek(NAME, "behind", 2),
    *(ListKeys(NAME, token, limit) for token, limit in (("a1", 200), ("b1", 2), ("b2", 200), ("none", 9), ("a2", 0))),
)
BASE = f"{record_key(PREFIX, NAME)}:{QUEUES}"

# Only the clock of the test expires keys: a window may be shorter than the test takes.
APART = BETWEEN.replace("  if name == 'RPUSH' then server.call('RPUSH', 'test:wakes', 'pop', key) end\n", "").replace(
    "  return send(name, key, ...)",
    """
  if name == 'SET' then
    if rest[2] ~= 'PX' then server.call('HDEL', 'test:ends', key) end
    return send(name, key, rest[1])
  end
  return send(name, key, ...)""",
)
MOVE = """
redis.call('DEL', 'test:time')
redis.call('RPUSH', 'test:time', ARGV[1], ARGV[2])
local now = ARGV[1] * 1000000 + ARGV[2]
local ends = redis.call('HGETALL', 'test:ends')
for i = 1, #ends, 2 do
  if tonumber(ends[i + 1]) <= now then
    redis.call('DEL', ends[i])
    redis.call('HDEL', 'test:ends', ends[i])
  end
end
-- The script itself removes ended tokens later; that makes a difference only if the clock goes back.
redis.call('ZREMRANGEBYSCORE', KEYS[1] .. ':published', '-inf', string.format('%.0f', now))
return redis.call('EXISTS', KEYS[1])
"""
LOOK = """
local endless, alive = {}, {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if not string.find(key, '^test:') and redis.call('HEXISTS', 'test:ends', key) == 0 then
    endless[#endless + 1] = key
  end
end
for _, key in ipairs(redis.call('KEYS', '*:queue:alive:*')) do
  alive[#alive + 1] = string.match(key, ':alive:(.*)$')
  alive[#alive + 1] = redis.call('HGET', 'test:ends', key)
end
local wakeups = redis.call('LRANGE', 'test:wakes', 0, -1)
redis.call('DEL', 'test:wakes')
return { endless, wakeups, alive }
"""


@dataclass(frozen=True)
class Step:
    """One step of a program: the time since the last one, the kind of command, its token and its arguments.

    Ids and entries are unknown before the program runs: numbers stand for them.
    """

    after_us: int
    kind: type
    token: str
    arguments: Any = ()


# How the arguments of a step become a command.
COMMANDS = {
    Publish: lambda twin, _, given: Publish(NAME, given[0], twin.new_messages(given[0], given[2]), given[1]),
    Join: lambda _, token, arguments: Join(NAME, token, f"holder {token}", f"läbel {token}", *arguments),
    ConsumerHeartbeat: lambda _, token, ttl_ms: ConsumerHeartbeat(NAME, token, ttl_ms),
    Leave: lambda _, token, __: Leave(NAME, token),
    Receive: lambda twin, token, given: Receive(
        NAME, token, *given[:3], twin.had(token, given[3]), *given[4:6], *map(partial(twin.seen, token), given[6:])
    ),
    RecordOutcomes: lambda twin, token, given: RecordOutcomes(NAME, token, twin.outcomes(token, given[0]), *given[1:]),
    ReclaimExpired: lambda _, __, arguments: ReclaimExpired(NAME, *arguments),
    TakeOver: lambda _, token, arguments: TakeOver(NAME, token, *arguments),
    GetDeadLetter: lambda twin, _, arguments: GetDeadLetter(NAME, *twin.ids(arguments[0])),
    Redrive: lambda twin, _, arguments: Redrive(NAME, twin.ids(arguments[0]), *arguments[1:]),
    Purge: lambda twin, _, arguments: Purge(NAME, twin.ids(arguments[0]), *arguments[1:]),
}


class RedisQueueState(MemoryQueueState):
    """A state like the server's: the time of a delivery is its fence, and an announced session has a key."""

    def __init__(self):
        super().__init__()
        self.announcing, self.alive = set(), {}

    def deliver_ready(self, lane, count, token, fence, now_us):
        taken = (
            super(RedisQueueState, self).deliver_ready(lane, 1, token, fence + at, fence + at) for at in range(count)
        )
        return [entry for found in taken for entry in found]

    def deliver(self, lane, message, token, fence, now_us):
        return super().deliver(lane, message, token, fence, fence)

    def put_consumer(self, consumer):
        super().put_consumer(consumer)
        self.alive.pop(consumer.token, None)
        if consumer.token in self.announcing and not consumer.blame:
            self.alive[consumer.token] = consumer.expires_us

    def remove_consumer(self, token):
        super().remove_consumer(token)
        self.alive.pop(token, None)


class QueueTwin:
    """The scripts and the rules of one queue."""

    def __init__(self, url, mutation=None):
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packers = {client: Packer(PREFIX, client, MEMORY_MS) for client in (*CLIENTS, STRANGER)}
        self._shas = {}
        for kind in commands_of(RuleKind.QUEUE):
            script = SCRIPTS[kind]
            text = APART + (script.text if mutation is None else mutation.applied_to(script.text))
            loaded = self._ask(packed("SCRIPT", "LOAD", text))
            assert loaded == hashlib.sha1(text.encode()).hexdigest()
            self._shas[kind] = (script.sha.encode(), loaded.encode())
        self._move = self._ask(packed("SCRIPT", "LOAD", MOVE))
        self._look = self._ask(packed("SCRIPT", "LOAD", LOOK))

    def close(self):
        self._ask(packed("FLUSHALL"))
        self._link.close()

    def run(self, program):
        """Run a program on an empty server; raise `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        self.now_us, self.state, self.sent = START_US, RedisQueueState(), 0
        self._theirs, self._had, self._ids, self._calls = {}, {}, [], {}
        for number, step in enumerate(program, 1):
            self._advance(step.after_us)
            self._both(step.token[0], self._command(step))
            if number % CHECK_EVERY == 0 or number == len(program):  # it takes many commands
                self._check(f"after {step}")

    def _ask(self, *commands):
        replies = self._link.exchange(b"".join(commands), len(commands), 5.0)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[-1] if len(replies) == 1 else replies

    def _advance(self, after_us):
        self.now_us += after_us
        self.state.alive = {token: end for token, end in self.state.alive.items() if end > self.now_us}
        self.state.earlier_result("", self.now_us)  # expired results are gone for good
        seconds, micros = divmod(self.now_us, 1_000_000)
        if not self._ask(packed("EVALSHA", self._move, "1", BASE, str(seconds), str(micros))):
            # The server has forgotten the queue; deduplication keys and results have keys of their own.
            before, self.state = self.state, RedisQueueState()
            if before.totals()[:5] != (0, 0, 0, 0, 0):
                raise Difference(f"the queue was forgotten with {before.totals()}")
            self.state._dedup, self.state._results = before._dedup, before._results

    # Commands.

    def _command(self, step):
        command = COMMANDS[step.kind](self, step.token, step.arguments)
        if isinstance(command, Join) and self.state.get_consumer(command.token) is None:
            (self.state.announcing.add if command.announce_expiry else self.state.announcing.discard)(command.token)
        return command

    def new_messages(self, call, messages):
        """Return new messages; for a copy of a call whose result is remembered, the same messages again."""
        if self.state.earlier_result(call, self.now_us) is None:
            self._calls[call] = tuple(self._new_message(*each) for each in messages)
        return self._calls[call]

    def had(self, token, count):
        """Return the first `count` entries that it ever held; for `MANY`, all of them and an unknown one."""
        had = tuple(self._had.get(token, ()))
        return None if count is None else had[:count] if count < MANY else (*had, "none")

    def seen(self, token, count):
        """Return the largest fence that it has seen, if it has not seen the newest `count` messages that it holds."""
        fences = [each.fence for each in self.state.newest_held(token, 1000)]
        return -1 if count is None else ([*fences[count:], 0])[0]

    def outcomes(self, token, outcomes):
        return tuple(self._outcome(token, *each) for each in outcomes)

    def ids(self, places):
        return tuple(self._ids[-at] if at <= len(self._ids) else "none" for at in places)

    def _new_message(self, delay_ms, dedup, lane, key=""):
        self.sent += 1
        body = bytes((self.sent % 256, 255, 10, 13, 0)) * (self.sent % 3)
        self._ids.append(f"ïd{self.sent}")
        return NewMessage(self._ids[-1], body, "{}" * (self.sent % 2), delay_ms, dedup, 700 if dedup else 0, key, lane)

    def _outcome(self, token, at, kind, delay_ms, error):
        had = self._had.get(token, ())
        entry = had[-at] if at <= len(had) else "none"
        return MessageOutcome(entry, kind, delay_ms, "réason", error)

    # Both sides.

    def _both(self, client, command):
        expected, wakeups = self._by_rule(client, command)
        reply, (endless, published, alive) = self._ask(self._sent(client, command), packed("EVALSHA", self._look, "0"))
        answer = answered(type(command), reply)
        if isinstance(expected, Received) and isinstance(answer, Received):
            self._meet(command.token, expected, answer)
        totals = self.state.totals()
        over = not (self.state.size or totals.dead or totals.consumers)
        facts = {
            "answer": (self._translated(expected), answer),
            "wake-ups": ([(f"{PREFIX}:wake:{call.client}", call.token) for call in wakeups], _paired(published)),
            "keys that never expire": ([], endless if over else []),
            "sessions with a key": (self.state.alive, {token: int(end) for token, end in _paired(alive)}),
        }
        for fact, (rule, script) in facts.items():
            if rule != script:
                raise Difference(f"{fact} after {command} by {client}:\n  rule   {rule}\n  script {script}")
        for inspection, seen in zip(
            INSPECTIONS, self._ask(*(self._sent(STRANGER, each) for each in INSPECTIONS)), strict=True
        ):
            rule, script = self._by_rule(STRANGER, inspection)[0], answered(type(inspection), seen)
            if rule != script:
                raise Difference(f"{inspection} after {command} by {client}:\n  rule   {rule}\n  script {script}")

    def _check(self, when):
        """Compare the check in pages with the check of all messages at once: nothing moves in the meantime."""

        async def ask(page):
            return answered(CheckConsistency, self._ask(self._sent(STRANGER, page)))

        rule = self._by_rule(STRANGER, CheckConsistency(NAME))[0]
        script = run(check_consistency(ask, NAME, most=2 if self.sent % 2 else PAGE))
        if rule != script:
            raise Difference(f"check {when}:\n  rule   {rule}\n  script {script}")

    def _by_rule(self, client, command):
        return RULES[type(command)].apply(self.state, command, Moment(self.now_us, self.now_us, client))

    def _sent(self, client, command):
        ours, theirs = self._shas[type(command)]
        return self._packers[client].pack(self._translated(command)).replace(ours, theirs)

    def _meet(self, token, expected, answer):
        """Remember which entries are the same."""
        for one, other in zip(expected.deliveries, answer.deliveries, strict=False):
            if self._theirs.setdefault(one.entry, other.entry) != other.entry:
                raise Difference(f"{one} was {self._theirs[one.entry]} and is {other}")
            if one.entry not in self._had.setdefault(token, []):
                self._had[token].append(one.entry)

    def _translated(self, value):
        """Return the command or answer with the entries of the script."""
        theirs = self._theirs
        if isinstance(value, Receive) and value.known_entries is not None:
            return value._replace(known_entries=tuple(theirs.get(entry, entry) for entry in value.known_entries))
        if isinstance(value, RecordOutcomes):
            outcomes = (each._replace(entry=theirs.get(each.entry, each.entry)) for each in value.outcomes)
            return value._replace(outcomes=tuple(outcomes))
        if isinstance(value, OutcomesRecorded):
            return OutcomesRecorded(tuple(theirs.get(entry, entry) for entry in value.lost))
        if isinstance(value, Received):
            met = (each._replace(entry=theirs.get(each.entry)) for each in value.deliveries)
            return value._replace(deliveries=tuple(met), lost=tuple(theirs.get(entry, entry) for entry in value.lost))
        return value


def _paired(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))

"""The scripts of queues beside their rules, under a clock that a test moves: see script_twin.py.

After each step a stranger looks at the queue on both sides: figures, consumers, what is where, who has which keys, dead
letters, and now and then the audit. Entries have other names on each side; the twin knows which are the same.
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
from holdfast.commands.queue_admin import PAGE, CheckConsistency, GetStats, ListConsumers, Peek
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
AUDIT_EVERY = 8
# What a stranger looks at after each step.
LOOKS = (
    GetStats(NAME),
    ListConsumers(NAME, 200),
    ListDeadLetters(NAME, "", 200),
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
BASE = f"{record_key(PREFIX, NAME)}:mq"

# Ends of keys are by the clock of the test alone: a window may be shorter than the test takes.
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
return redis.call('EXISTS', KEYS[1])
"""
LOOK = """
local endless, lives = {}, {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if not string.find(key, '^test:') and redis.call('HEXISTS', 'test:ends', key) == 0 then
    endless[#endless + 1] = key
  end
end
for _, key in ipairs(redis.call('KEYS', '*:mq:live:*')) do
  lives[#lives + 1] = string.match(key, ':live:(.*)$')
  lives[#lives + 1] = redis.call('HGET', 'test:ends', key)
end
local heard = redis.call('LRANGE', 'test:wakes', 0, -1)
redis.call('DEL', 'test:wakes')
return { endless, heard, lives }
"""


@dataclass(frozen=True)
class Said:
    """One step of a program: how long after the last one, who speaks, what kind of command, and what it says.

    Ids and entries cannot be known before the program runs: numbers stand for them.
    """

    after_us: int
    kind: type
    token: str
    words: Any = ()


# How the words of a step become a command.
MADE = {
    Publish: lambda twin, _, words: Publish(NAME, words[0], twin.drafts(words[0], words[2]), words[1]),
    Join: lambda _, token, words: Join(NAME, token, f"owner of {token}", f"läbel {token}", *words),
    ConsumerHeartbeat: lambda _, token, ttl_ms: ConsumerHeartbeat(NAME, token, ttl_ms),
    Leave: lambda _, token, __: Leave(NAME, token),
    Receive: lambda twin, token, words: Receive(
        NAME, token, *words[:3], twin.had(token, words[3]), *words[4:6], *map(partial(twin.seen, token), words[6:])
    ),
    RecordOutcomes: lambda twin, token, words: RecordOutcomes(NAME, token, twin.outcomes(token, words[0]), words[1]),
    ReclaimExpired: lambda _, __, words: ReclaimExpired(NAME, *words),
    TakeOver: lambda _, token, words: TakeOver(NAME, token, *words),
    GetDeadLetter: lambda twin, _, words: GetDeadLetter(NAME, *twin.ids(words[0])),
    Redrive: lambda twin, _, words: Redrive(NAME, twin.ids(words[0]), *words[1:]),
    Purge: lambda twin, _, words: Purge(NAME, twin.ids(words[0]), *words[1:]),
}


class RedisQueueState(MemoryQueueState):
    """As the server has it: the time at which a message was taken is its fence, and lives are keys that end."""

    def __init__(self):
        super().__init__()
        self.heard, self.lives = set(), {}

    def deliver_ready(self, lane, count, token, fence, now_us):
        taken = (
            super(RedisQueueState, self).deliver_ready(lane, 1, token, fence + at, fence + at) for at in range(count)
        )
        return [entry for found in taken for entry in found]

    def deliver(self, lane, message, token, fence, now_us):
        return super().deliver(lane, message, token, fence, fence)

    def put_consumer(self, member):
        super().put_consumer(member)
        self.lives.pop(member.token, None)
        if member.token in self.heard and not member.blame:
            self.lives[member.token] = member.expires_us

    def remove_consumer(self, token):
        super().remove_consumer(token)
        self.lives.pop(token, None)


class QueueTwin:
    """Both sides of one queue."""

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
        """A whole program, from an empty server; `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        self.now_us, self.state, self.sent = START_US, RedisQueueState(), 0
        self._theirs, self._had, self._ids, self._calls = {}, {}, [], {}
        for number, step in enumerate(program, 1):
            self._advance(step.after_us)
            self._both(step.token[0], self._command(step))
            if number % AUDIT_EVERY == 0 or number == len(program):  # it takes many steps
                self._audited(f"after {step}")

    def _ask(self, *commands):
        replies = self._link.exchange(b"".join(commands), len(commands), 5.0)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[-1] if len(replies) == 1 else replies

    def _advance(self, after_us):
        self.now_us += after_us
        self.state.lives = {token: end for token, end in self.state.lives.items() if end > self.now_us}
        self.state.earlier_result("", self.now_us)  # what has ended is gone for good, even if the clock is set back now
        seconds, micros = divmod(self.now_us, 1_000_000)
        if not self._ask(packed("EVALSHA", self._move, "1", BASE, str(seconds), str(micros))):
            # Nobody remembers the queue any more; what was sent is remembered by keys of their own.
            before, self.state = self.state, RedisQueueState()
            if before.totals()[:5] != (0, 0, 0, 0, 0):
                raise Difference(f"the queue was forgotten with {before.totals()}")
            self.state._dedup, self.state._results = before._dedup, before._results

    # What is said.

    def _command(self, step):
        command = MADE[step.kind](self, step.token, step.words)
        if isinstance(command, Join) and self.state.get_consumer(command.token) is None:
            (self.state.heard.add if command.announce_expiry else self.state.heard.discard)(command.token)
        return command

    def drafts(self, call, drafts):
        """New ones, unless this is a copy of a call that is still known: then it says the same."""
        if self.state.earlier_result(call, self.now_us) is None:
            self._calls[call] = tuple(self._draft(*draft) for draft in drafts)
        return self._calls[call]

    def had(self, token, count):
        """The first so many that it ever had; of many, also one that nobody had."""
        had = tuple(self._had.get(token, ()))
        return None if count is None else had[:count] if count < MANY else (*had, "none")

    def seen(self, token, count):
        """The largest fence that it has seen, if it has not seen the newest so many of what it has."""
        fences = [each.fence for each in self.state.newest_held(token, 1000)]
        return -1 if count is None else ([*fences[count:], 0])[0]

    def outcomes(self, token, outcomes):
        return tuple(self._outcome(token, *each) for each in outcomes)

    def ids(self, places):
        return tuple(self._ids[-at] if at <= len(self._ids) else "none" for at in places)

    def _draft(self, delay_ms, dedup, lane, key=""):
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
        reply, (endless, heard, lives) = self._ask(self._sent(client, command), packed("EVALSHA", self._look, "0"))
        answer = answered(type(command), reply)
        if isinstance(expected, Received) and isinstance(answer, Received):
            self._meet(command.token, expected, answer)
        totals = self.state.totals()
        over = not (self.state.size or totals.dead or totals.consumers)
        facts = {
            "answer": (self._translated(expected), answer),
            "wake-ups": ([(f"{PREFIX}:wake:{call.client}", call.token) for call in wakeups], _paired(heard)),
            "keys without an end": ([], endless if over else []),
            "lives": (self.state.lives, {token: int(end) for token, end in _paired(lives)}),
        }
        for fact, (rule, script) in facts.items():
            if rule != script:
                raise Difference(f"{fact} after {command} by {client}:\n  rule   {rule}\n  script {script}")
        for look, seen in zip(LOOKS, self._ask(*(self._sent(STRANGER, look) for look in LOOKS)), strict=True):
            rule, script = self._by_rule(STRANGER, look)[0], answered(type(look), seen)
            if rule != script:
                raise Difference(f"{look} after {command} by {client}:\n  rule   {rule}\n  script {script}")

    def _audited(self, when):
        """Nothing moves meanwhile: whoever looks page by page sees what whoever sees all at once does."""

        async def ask(page):
            return answered(CheckConsistency, self._ask(self._sent(STRANGER, page)))

        rule = self._by_rule(STRANGER, CheckConsistency(NAME))[0]
        script = run(check_consistency(ask, NAME, most=2 if self.sent % 2 else PAGE))
        if rule != script:
            raise Difference(f"audit {when}:\n  rule   {rule}\n  script {script}")

    def _by_rule(self, client, command):
        return RULES[type(command)].apply(self.state, command, Moment(self.now_us, self.now_us, client))

    def _sent(self, client, command):
        ours, theirs = self._shas[type(command)]
        return self._packers[client].pack(self._translated(command)).replace(ours, theirs)

    def _meet(self, token, expected, answer):
        """Which entries are the same."""
        for one, other in zip(expected.deliveries, answer.deliveries, strict=False):
            if self._theirs.setdefault(one.entry, other.entry) != other.entry:
                raise Difference(f"{one} was {self._theirs[one.entry]} and is {other}")
            if one.entry not in self._had.setdefault(token, []):
                self._had[token].append(one.entry)

    def _translated(self, said):
        """The same with the entries of the script."""
        theirs = self._theirs
        if isinstance(said, Receive) and said.known_entries is not None:
            return said._replace(known_entries=tuple(theirs.get(entry, entry) for entry in said.known_entries))
        if isinstance(said, RecordOutcomes):
            outcomes = (each._replace(entry=theirs.get(each.entry, each.entry)) for each in said.outcomes)
            return said._replace(outcomes=tuple(outcomes))
        if isinstance(said, OutcomesRecorded):
            return OutcomesRecorded(tuple(theirs.get(entry, entry) for entry in said.lost))
        if isinstance(said, Received):
            met = (each._replace(entry=theirs.get(each.entry)) for each in said.deliveries)
            return said._replace(deliveries=tuple(met), lost=tuple(theirs.get(entry, entry) for entry in said.lost))
        return said


def _paired(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))

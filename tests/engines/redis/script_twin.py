"""Run a script and its rule side by side, under a clock that a test moves.

The scripts run unchanged behind a few lines of Lua that stand between them and the server: `TIME` is read from a test
key, every expiry is also written down, a key that has expired by that clock is deleted, and wake-ups are kept in a
list. The rule gets the same moment. After each step the answers, the records and the wake-ups are compared.
"""

import hashlib
from dataclasses import dataclass

from holdfast import config
from holdfast.commands import Acquire, Break, Busy, WaiterHeartbeat
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import PREFIX, record_key
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.rules import Moment, Record, forget_at_us
from holdfast.rules.lease import advance
from holdfast.rules.lease_record import HolderRecord, MemoryTombstones, Tombstone, Waiter, Waiters
from holdfast.rules.table import RULES
from holdfast.rules.trust import DOUBT_MS, HEARTBEAT_MS, NEAR_HEARTBEAT_MS

NAME = "one name"
START_US = 1_700_000_000_000_000
MEMORY_MS = 60_000
LONGEST_TTL_MS = 20_000
CLIENTS = ("a", "b", "c")
BASE = record_key(PREFIX, NAME)
NOTHING = ("0", "", "0", "0", "0", "0", "", "", "0", "0", "0", "0", "0", "")

BETWEEN = """
local server, redis = redis, {}
local function later(key, ms)
  local time = server.call('LRANGE', 'test:time', 0, -1)
  server.call('HSET', 'test:ends', key, string.format('%.0f', time[1] * 1000000 + time[2] + ms * 1000))
end
local function through(send, name, key, ...)
  local rest = { ... }
  if name == 'TIME' then return send('LRANGE', 'test:time', 0, -1) end
  if name == 'PEXPIRE' then later(key, rest[1]) end
  if name == 'SET' and rest[2] == 'PX' then later(key, rest[3]) end
  if name == 'DEL' then server.call('HDEL', 'test:ends', key, ...) end
  if name == 'PUBLISH' then server.call('RPUSH', 'test:wakes', key, rest[1]) end
  if name == 'RPUSH' then server.call('RPUSH', 'test:wakes', 'pop', key) end
  return send(name, key, ...)
end
function redis.call(...) return through(server.call, ...) end
function redis.pcall(...) return through(server.pcall, ...) end
"""
MOVE = """
redis.call('DEL', 'test:time', 'test:wakes')
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
local base, tombstones, waiters = KEYS[1], {}, {}
local function values(packed)
  if not packed then return {} end
  local found = { cmsgpack.unpack(packed) }
  for i, value in ipairs(found) do
    if type(value) == 'number' then found[i] = string.format('%.0f', value) end
    if type(value) == 'boolean' then found[i] = value and '1' or '0' end
  end
  return found
end
for _, key in ipairs(redis.call('HKEYS', 'test:ends')) do
  if string.find(key, base .. ':ended:', 1, true) == 1 then
    tombstones[#tombstones + 1] = { key, redis.call('GET', key) }
  end
end
for _, token in ipairs(redis.call('ZRANGE', base .. ':line', 0, -1)) do
  waiters[#waiters + 1] = { token, values(redis.call('HGET', base .. ':waiters', token)) }
end
local strays = {}
for _, token in ipairs(redis.call('HKEYS', base .. ':waiters')) do
  if not redis.call('ZSCORE', base .. ':line', token) then strays[#strays + 1] = token end
end
local endless = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 and not string.find(key, '^test:') then endless[#endless + 1] = key end
end
return { values(redis.call('GET', base)), waiters, redis.call('ZRANGE', base .. ':heartbeats', 0, -1, 'WITHSCORES'),
  tombstones, redis.call('HGETALL', 'test:ends'), redis.call('LRANGE', 'test:wakes', 0, -1), endless, strays }
"""


@dataclass(frozen=True)
class Seen:
    """Return the stored state of the name as values of the rule."""

    record: Record
    heartbeats: dict
    ends: dict
    wakes: list
    endless: list
    strays: list


class Difference(AssertionError):
    """The script and the rule differ."""


class Twin:
    """The script and the rule of one name."""

    def __init__(self, url, mutation=None):
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packers = {client: Packer(PREFIX, client, MEMORY_MS) for client in CLIENTS}
        self._shas = {}
        for kind, script in SCRIPTS.items():
            text = BETWEEN + (script.text if mutation is None else mutation.applied_to(script.text))
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
        self.now_us, self.record, self.heartbeats = START_US, Record(), {}
        self._popping = set()
        for step in program:
            self._step(step)

    def _ask(self, *commands):
        replies = self._link.exchange(b"".join(commands), len(commands), 5.0)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[-1] if len(replies) == 1 else replies

    def _step(self, step):
        self._advance(step.after_us)
        command = self._resolved(step.command)
        before, expected = self.record, self._by_rule(step.client, command)
        reply, seen = self._by_script(step.client, command)

        wanted = self._wakeups(command, before, expected)
        facts = {
            "answer": (expected.answer, answered(type(command), reply)),
            "record": (self._present(expected.record, self.heartbeats), self._present(seen.record, seen.heartbeats)),
            "wake-up": (wanted, seen.wakes),
            "keys that never expire": ([], seen.endless),
            "waiters outside the line": ([], seen.strays),
            "expiry": (True, self._expires_well(expected.record, before, seen)),
        }
        for fact, (rule, script) in facts.items():
            if rule != script:
                raise Difference(f"{fact} after {command} by {step.client}:\n  rule   {rule}\n  script {script}")
        self.record = expected.record

    def _wakeups(self, command, before, expected):
        """Return how the server must wake the waiter that the rule names: by a push, or on its client's channel."""
        late, wake = before.holder, expected.wake
        if late is not None and late.offered and late.expires_us <= self.now_us:
            self._popping.discard(late.token)  # it may not pop any more, so it gets a published wake-up
        if type(command) is Acquire and command.wait and isinstance(expected.answer, Busy):
            (self._popping.add if pops(command.token) else self._popping.discard)(command.token)
        if wake is None:
            return []
        repeated = late is not None and late.fence == wake.fence
        if wake.token in self._popping and not repeated:
            return ["pop", f"{BASE}:wakeup:{wake.token}"]
        return [f"{PREFIX}:wake:{wake.client}", wake.token]

    def _advance(self, after_us):
        self.now_us += after_us
        seconds, micros = divmod(self.now_us, 1_000_000)
        if not self._ask(packed("EVALSHA", self._move, "1", BASE, str(seconds), str(micros))):
            # The server has forgotten the name; `_expires_well` has checked that this is not too early.
            self.record = Record()

    def _resolved(self, command):
        """Fill in a fence, which is unknown before the program runs: 0 is the present one, 1 an older one."""
        if not isinstance(command, Break):
            return command
        holder = self._present(self.record, self.heartbeats).holder
        return command._replace(fence=(holder.fence if holder else 7) - command.fence)

    def _by_rule(self, client, command):
        moment, late = self._moment(self.record, self.heartbeats, client), self.record.holder
        step = RULES[type(command)].apply(self.record, command, moment)
        if late is not None and self._missed(late, moment) and step.record != self.record:
            doubt_us = self.now_us + DOUBT_MS * 1000
            self.heartbeats[late.client] = min(self.heartbeats[late.client], doubt_us)
        if type(command) is WaiterHeartbeat or (
            type(command) is Acquire and command.wait and isinstance(step.answer, Busy)
        ):
            near = type(command) is Acquire or step.answer.near
            self.heartbeats[client] = self.now_us + (NEAR_HEARTBEAT_MS if near else HEARTBEAT_MS) * 1000
        return step

    def _missed(self, holder, moment):
        """Return whether an offer has lapsed although its client is alive."""
        lapsed = holder.offered and holder.expires_us <= self.now_us
        return lapsed and holder.client != moment.client and holder.client not in moment.silent

    def _by_script(self, client, command):
        ours, theirs = self._shas[type(command)]
        popping = type(command) is Acquire and command.wait and pops(command.token)
        sent = self._packers[client].pack(command, pops=popping).replace(ours, theirs)
        looked = packed("EVALSHA", self._look, "1", BASE)
        reply, look = self._ask(sent, looked)
        return reply, self._seen(look)

    def _seen(self, look):
        fields, stored, heartbeats, tombstones, ends, wakes, endless, strays = look
        ends = {key: int(end) for key, end in _paired(ends).items()}
        fields = (*(fields or ()), *NOTHING[len(fields or ()) :])  # the record of a free lease has no holder
        fence, last, _, _, _, _, token, client, held, ttl_ms, since_us, expires_us, offered, identity = fields
        holder = None
        if token:
            numbers = map(int, (held, ttl_ms, since_us, expires_us))
            holder = HolderRecord(token, _client(client), identity, *numbers, offered=offered == "1")
        waiters = [Waiter(token, _client(each[0]), each[3], int(each[1]), int(each[2])) for token, each in stored]
        ended = [(key.removeprefix(f"{BASE}:ended:"), ends[key], *text.split("\n", 1)) for key, text in tombstones]
        record = Record(
            fence=int(fence), holder=holder, waiters=Waiters.of(waiters),
            tombstones=MemoryTombstones.of(Tombstone(*each) for each in ended), last=last,
        )  # fmt: skip
        alive = {_client(c): int(end) for c, end in _paired(heartbeats).items()}
        return Seen(record, alive, ends, wakes, endless, strays)

    def _moment(self, record, heartbeats, client):
        """Return what the engine sees, as engines/memory/engine.py finds it out."""
        watched = set(record.waiters.clients)
        if record.holder is not None and record.holder.offered:
            watched.add(record.holder.client)
        silent = frozenset(other for other in watched if heartbeats.get(other, 0) <= self.now_us and other != client)
        doubt_us = self.now_us + DOUBT_MS * 1000
        doubtful = {other for other in watched if heartbeats.get(other, 0) <= doubt_us and other != client} - silent
        moment = Moment(self.now_us, self.now_us, client, silent=silent)
        if record.holder is not None and self._missed(record.holder, moment):
            doubtful.add(record.holder.client)
        return moment._replace(doubtful=frozenset(doubtful))

    def _present(self, record, heartbeats):
        """Return the record as the next command of another client would find it."""
        now = advance(record, self._moment(record, heartbeats, "stranger"))
        return now._replace(touched_us=0, tombstones=self._unexpired(now.tombstones))

    def _unexpired(self, tombstones):
        """Drop expired tombstones, which have no effect."""
        return MemoryTombstones.of(tombstone for tombstone in tombstones if tombstone.until_us > self.now_us)

    def _expires_well(self, record, before, seen):
        """Check that the name is remembered at least as long as the rule requires, and not for ever."""
        if BASE not in seen.ends:
            return record == before == Record()
        last_us = self.now_us + (max(60_000, 2 * LONGEST_TTL_MS) + MEMORY_MS) * 1000
        touched = record._replace(tombstones=self._unexpired(record.tombstones))
        return forget_at_us(touched, MEMORY_MS * 1000) <= seen.ends[BASE] <= last_us


def pops(token):
    """Return whether this token of the tests blocks on the server: every second one does."""
    return token.endswith("2")


def _client(channel):
    return channel.removeprefix(f"{PREFIX}:wake:")


def _paired(flat):
    return dict(zip(flat[::2], flat[1::2], strict=True))

"""Run the scripts of pools and their rules side by side, under a clock that a test moves: see script_twin.py.

After each step another client reads the figures of the pool on both sides, so that answers, items, the waiting line and
wake-ups are compared.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

from script_twin import BETWEEN, MOVE, START_US, Difference

from holdfast import config
from holdfast.commands import (
    POOL,
    READ,
    RWLOCK,
    SEMAPHORE,
    WHOLE_PPM,
    WRITE,
    Borrow,
    BreakItem,
    Busy,
    ChangePool,
    CoolItem,
    Extend,
    GetPoolStats,
    Granted,
    PoolHeartbeat,
    Return,
)
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import PREFIX, record_key
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.rules import Moment
from holdfast.rules.pool_state import FREE, LENT, MemoryPoolState
from holdfast.rules.table import RULES, RuleKind, commands_of
from holdfast.rules.trust import DOUBT_MS, HEARTBEAT_MS, NEAR_HEARTBEAT_MS

NAME = "one pool"
MEMORY_MS = 60_000
CLIENTS = ("a", "b", "c")
STRANGER = "stranger"

_BETWEEN = (
    BETWEEN.replace(
        "if name == 'PEXPIRE' then later(key, rest[1]) end",
        "if name == 'PEXPIRE' and server.call('EXISTS', key) == 1 then later(key, rest[1]) end\n"
        "  if name == 'PERSIST' or (name == 'SET' and not rest[2]) then server.call('HDEL', 'test:ends', key) end",
    )
    + "redis.sha1hex = server.sha1hex\n"
)
ENDLESS = """
local found = {}
for _, key in ipairs(redis.call('KEYS', '*')) do
  if redis.call('PTTL', key) == -1 and not string.find(key, '^test:') then found[#found + 1] = key end
end
return { found, redis.call('LRANGE', 'test:wakes', 0, -1) }
"""


def _for_semaphore(command):
    """Return the command for a semaphore: mostly of two permits, sometimes of three. Only their number changes."""
    if isinstance(command, Borrow):
        return command._replace(tag="", share_ppm=WHOLE_PPM, permits=3 if command.ttl_ms == 1000 else 2)
    if isinstance(command, ChangePool):
        permits = 1 + len(command.items) % 3
        return command._replace(operation="set", items=("1", "2", "3")[:permits], leave=True, permits=permits)
    return command._replace(item="1") if isinstance(command, BreakItem | CoolItem) else command


def _for_rwlock(command):
    if isinstance(command, Borrow):
        return command._replace(tag=WRITE if command.share_ppm == 340_000 else READ, share_ppm=1)
    if isinstance(command, ChangePool):
        return PoolHeartbeat(command.name)
    return command._replace(item="writer") if isinstance(command, BreakItem | CoolItem) else command


@dataclass(frozen=True)
class Step:
    """One step of a program: the time since the last one, the client and its command."""

    after_us: int
    client: str
    command: Any


def borrow(after_us, token, ttl_ms=3000, wait=True, cooldown_ms=0, share=("", WHOLE_PPM)):
    return Step(after_us, token[0], Borrow(NAME, token, f"holder {token}", ttl_ms, wait, cooldown_ms, *share))


def send(after_us, client, command):
    return Step(after_us, client, command)


def change(*items, operation="set", leave=False, after_us=0):
    return Step(after_us, "a", ChangePool(NAME, operation, items, leave, 2_654_435_769))


def give_back(after_us, token, cooldown_ms=0, tombstone=False):
    return Step(after_us, token[0], Return(NAME, "", token, cooldown_ms, tombstone))


COMMANDS_FOR = {POOL: lambda command: command, SEMAPHORE: _for_semaphore, RWLOCK: _for_rwlock}


def pops(token):
    """Return whether this token of the tests blocks on the server: every second one does."""
    return token.endswith("2")


class PoolTwin:
    """The scripts and the rules of one pool."""

    def __init__(self, url, kind=POOL, mutation=None):
        self.kind, self.base = kind, f"{record_key(PREFIX, NAME)}:{kind}"
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packers = {client: Packer(PREFIX, client, MEMORY_MS) for client in (*CLIENTS, STRANGER)}
        self._shas = {}
        for command in commands_of(RuleKind.POOL):
            script = SCRIPTS[command]
            text = _BETWEEN + (script.text if mutation is None else mutation.applied_to(script.text))
            loaded = self._ask(packed("SCRIPT", "LOAD", text))
            assert loaded == hashlib.sha1(text.encode()).hexdigest()
            self._shas[command] = (script.sha.encode(), loaded.encode())
        self._move = self._ask(packed("SCRIPT", "LOAD", MOVE))
        self._look = self._ask(packed("SCRIPT", "LOAD", ENDLESS))

    def close(self):
        self._ask(packed("FLUSHALL"))
        self._link.close()

    def run(self, program):
        """Run a program on an empty server; raise `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        self.now_us, self.state, self.heartbeats = START_US, MemoryPoolState(self.kind), {}
        self._has, self._listens, self._life = {}, {}, 0
        for step in program:
            self._advance(step.after_us)
            self._both(step.client, self._resolved(step.command))
            self._both(STRANGER, GetPoolStats(NAME, 100, self.kind))

    def _ask(self, *commands):
        replies = self._link.exchange(b"".join(commands), len(commands), 5.0)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies[-1] if len(replies) == 1 else replies

    def _both(self, client, command):
        self._ask(packed("DEL", "test:wakes"))
        before = self._offers()
        expected, wakeups = self._by_rule(client, command)
        reply, (endless, published) = self._by_script(client, command)
        kept = self.kind == POOL and self.state.size > 0
        answer = answered(type(command), reply)
        facts = {
            "answer": (expected, answer._replace(**dict.fromkeys({"all_ms", "life"} & set(answer._fields), 0))),
            "all_ms": (self._all_ms() if hasattr(answer, "all_ms") else 0, getattr(answer, "all_ms", 0)),
            "life": (self._life or getattr(answer, "life", 0), getattr(answer, "life", self._life)),
            "wake-ups": (sorted(self._wakeups(command, wakeups, before)), sorted(_paired(published))),
            "expiry": (True, kept or endless == []),
        }
        for fact, (rule, script) in facts.items():
            if rule != script:
                raise Difference(f"{fact} after {command} by {client}:\n  rule   {rule}\n  script {script}")
        self._life = getattr(answer, "life", self._life)
        if isinstance(expected, Granted):
            self._has[command.token] = expected.item

    def _all_ms(self):
        """Return a figure that the rule lacks: when the last item would be free."""
        away = [item for item in self.state.first(5000) if item.state != FREE]
        if not away:
            return 0
        last = max(away, key=lambda item: (item.back_us, item.name))
        free_us = last.back_us + (last.cooldown_ms * 1000 if last.state == LENT else 0)
        return max(1, -(-(free_us - self.now_us) // 1000))

    def _offers(self):
        return {item.token for client in CLIENTS for item in self.state.offers(client)}

    def _wakeups(self, command, wakeups, before):
        """Return how the server must wake the waiters that the rule names: by a push, or on the client's channel."""
        repeated = before if type(command) is PoolHeartbeat else set()
        return [
            ("pop", f"{self.base}:wakeup:{call.token}")
            if self._listens.get(call.token) == "pop" and call.token not in repeated
            else (f"{PREFIX}:wake:{call.client}", call.token)
            for call in wakeups
        ]

    def _advance(self, after_us):
        self.now_us += after_us
        seconds, micros = divmod(self.now_us, 1_000_000)
        if not self._ask(packed("EVALSHA", self._move, "1", self.base, str(seconds), str(micros))):
            self.state, self._life = MemoryPoolState(self.kind), 0

    def _resolved(self, command):
        """Fill in an item or a fence, which are unknown before the program runs, and adapt the command to the kind."""
        command = COMMANDS_FOR[self.kind](command)._replace(kind=self.kind)
        if isinstance(command, Extend | Return):
            return command._replace(item=self._has.get(command.token, "none"))
        if isinstance(command, BreakItem):
            item = self.state.find(command.item)
            return command._replace(fence=(item.fence if item else 7) - command.fence)
        return command

    def _by_rule(self, client, command):
        late = {item.token for client in CLIENTS for item in self.state.offers(client) if item.back_us <= self.now_us}
        silent = frozenset(
            other for other in self.state.watched() if self.heartbeats.get(other, 0) <= self.now_us and other != client
        )
        lapsed = {
            other
            for other in {*CLIENTS} - silent - {client}
            if any(item.back_us <= self.now_us for item in self.state.offers(other))
        }
        doubt_us = self.now_us + DOUBT_MS * 1000
        doubtful = {
            other for other in self.state.watched() if self.heartbeats.get(other, 0) <= doubt_us and other != client
        }
        moment = Moment(self.now_us, self.now_us, client, silent=silent, doubtful=frozenset(doubtful - silent | lapsed))
        answer, wakeups = RULES[type(command)].apply(self.state, command, moment)
        queued = isinstance(answer, Busy) and answer.position is not None
        for other in lapsed:
            self.heartbeats[other] = min(self.heartbeats[other], doubt_us)
        if type(command) is PoolHeartbeat or queued:
            near = type(command) is Borrow or answer.near
            self.heartbeats[client] = self.now_us + (NEAR_HEARTBEAT_MS if near else HEARTBEAT_MS) * 1000
        self._listens.update(dict.fromkeys(late, "publish"))  # it may not pop any more
        if type(command) is Borrow and queued:
            self._listens[command.token] = "pop" if pops(command.token) else "publish"
        return answer, wakeups

    def _by_script(self, client, command):
        ours, theirs = self._shas[type(command)]
        popping = type(command) is Borrow and command.wait and pops(command.token)
        sent = self._packers[client].pack(command, pops=popping).replace(ours, theirs)
        return self._ask(sent, packed("EVALSHA", self._look, "0"))


def _paired(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))

"""The scripts of pools beside their rules, under a clock that a test moves: see script_twin.py.

After each step a stranger counts the pool on both sides; so answers, items, queue and wake-ups are compared.
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
from holdfast.rules.pool import POOL_RULES
from holdfast.rules.pool_state import FREE, LENT, MemoryPoolState
from holdfast.rules.trust import HEARTBEAT_MS

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


def _of_seats(command):
    """Mostly of two, sometimes of three; the pool is changed by its number alone."""
    if isinstance(command, Borrow):
        return command._replace(tag="", share_ppm=WHOLE_PPM, permits=3 if command.ttl_ms == 1000 else 2)
    if isinstance(command, ChangePool):
        permits = 1 + len(command.items) % 3
        return command._replace(how="set", items=("1", "2", "3")[:permits], leave=True, permits=permits)
    return command._replace(item="1") if isinstance(command, BreakItem | CoolItem) else command


def _of_readers_and_writers(command):
    if isinstance(command, Borrow):
        return command._replace(tag=WRITE if command.share_ppm == 340_000 else READ, share_ppm=1)
    if isinstance(command, ChangePool):
        return PoolHeartbeat(command.name)
    return command._replace(item="writer") if isinstance(command, BreakItem | CoolItem) else command


@dataclass(frozen=True)
class Said:
    """One step of a program: how long after the last one, and who says what."""

    after_us: int
    client: str
    command: Any


def ask(after_us, token, ttl_ms=3000, wait=True, cooldown_ms=0, share=("", WHOLE_PPM)):
    return Said(after_us, token[0], Borrow(NAME, token, f"owner of {token}", ttl_ms, wait, cooldown_ms, *share))


def tell(after_us, client, command):
    return Said(after_us, client, command)


def have(*items, how="set", leave=False, after_us=0):
    return Said(after_us, "a", ChangePool(NAME, how, items, leave, 2_654_435_769))


def give(after_us, token, cooldown_ms=0, tombstone=False):
    return Said(after_us, token[0], Return(NAME, "", token, cooldown_ms, tombstone))


UNDER = {POOL: lambda command: command, SEMAPHORE: _of_seats, RWLOCK: _of_readers_and_writers}


def pops(token):
    """Every second token of the test blocks on its bell."""
    return token.endswith("2")


class PoolTwin:
    """Both sides of one pool."""

    def __init__(self, url, kind=POOL, mutation=None):
        self.kind, self.base = kind, f"{record_key(PREFIX, NAME)}:{kind}"
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packers = {client: Packer(PREFIX, client, MEMORY_MS) for client in (*CLIENTS, STRANGER)}
        self._shas = {}
        for kind in POOL_RULES:
            script = SCRIPTS[kind]
            text = _BETWEEN + (script.text if mutation is None else mutation.applied_to(script.text))
            loaded = self._ask(packed("SCRIPT", "LOAD", text))
            assert loaded == hashlib.sha1(text.encode()).hexdigest()
            self._shas[kind] = (script.sha.encode(), loaded.encode())
        self._move = self._ask(packed("SCRIPT", "LOAD", MOVE))
        self._look = self._ask(packed("SCRIPT", "LOAD", ENDLESS))

    def close(self):
        self._ask(packed("FLUSHALL"))
        self._link.close()

    def run(self, program):
        """A whole program, from an empty server; `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        self.now_us, self.state, self.marks = START_US, MemoryPoolState(self.kind), {}
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
        reply, (endless, heard) = self._by_script(client, command)
        kept = self.kind == POOL and self.state.size > 0
        told = answered(type(command), reply)
        facts = {
            "answer": (expected, told._replace(**dict.fromkeys({"all_ms", "life"} & set(told._fields), 0))),
            "the end of all": (self._all_ms() if hasattr(told, "all_ms") else 0, getattr(told, "all_ms", 0)),
            "life": (self._life or getattr(told, "life", 0), getattr(told, "life", self._life)),
            "wake-ups": (sorted(self._rings(command, wakeups, before)), sorted(_paired(heard))),
            "an end": (True, kept or endless == []),
        }
        for fact, (rule, script) in facts.items():
            if rule != script:
                raise Difference(f"{fact} after {command} by {client}:\n  rule   {rule}\n  script {script}")
        self._life = getattr(told, "life", self._life)
        if isinstance(expected, Granted):
            self._has[command.token] = expected.item

    def _all_ms(self):
        """What a server tells beside the rule: when the last of all that is away would be free."""
        away = [item for item in self.state.first(5000) if item.state != FREE]
        if not away:
            return 0
        last = max(away, key=lambda item: (item.back_us, item.name))
        free_us = last.back_us + (last.cooldown_ms * 1000 if last.state == LENT else 0)
        return max(1, -(-(free_us - self.now_us) // 1000))

    def _offers(self):
        return {item.token for client in CLIENTS for item in self.state.offers(client)}

    def _rings(self, command, wakeups, before):
        """How the server is to wake whom the rule names: by the bell that it pops, or by its client's channel."""
        told_again = before if type(command) is PoolHeartbeat else set()
        return [
            ("pop", f"{self.base}:k:{call.token}")
            if self._listens.get(call.token) == "pop" and call.token not in told_again
            else (f"{PREFIX}:wake:{call.client}", call.token)
            for call in wakeups
        ]

    def _advance(self, after_us):
        self.now_us += after_us
        seconds, micros = divmod(self.now_us, 1_000_000)
        if not self._ask(packed("EVALSHA", self._move, "1", self.base, str(seconds), str(micros))):
            self.state, self._life = MemoryPoolState(self.kind), 0

    def _resolved(self, command):
        """An item or a fence cannot be known before the program runs; and each roof has its own words."""
        command = UNDER[self.kind](command)._replace(kind=self.kind)
        if isinstance(command, Extend | Return):
            return command._replace(item=self._has.get(command.token, "none"))
        if isinstance(command, BreakItem):
            item = self.state.find(command.item)
            return command._replace(fence=(item.fence if item else 7) - command.fence)
        return command

    def _by_rule(self, client, command):
        late = {item.token for client in CLIENTS for item in self.state.offers(client) if item.back_us <= self.now_us}
        silent = frozenset(
            other for other in self.state.watched() if self.marks.get(other, 0) <= self.now_us and other != client
        )
        moment = Moment(self.now_us, self.now_us, client, silent=silent)
        answer, wakeups = POOL_RULES[type(command)](self.state, command, moment)
        queued = isinstance(answer, Busy) and answer.position is not None
        if type(command) is PoolHeartbeat or queued:
            self.marks[client] = self.now_us + HEARTBEAT_MS * 1000
        self._listens.update(dict.fromkeys(late, "ring"))  # nobody knows what it does now
        if type(command) is Borrow and queued:
            self._listens[command.token] = "pop" if pops(command.token) else "ring"
        return answer, wakeups

    def _by_script(self, client, command):
        ours, theirs = self._shas[type(command)]
        popping = type(command) is Borrow and command.wait and pops(command.token)
        sent = self._packers[client].pack(command, pops=popping).replace(ours, theirs)
        return self._ask(sent, packed("EVALSHA", self._look, "0"))


def _paired(flat):
    return list(zip(flat[::2], flat[1::2], strict=True))

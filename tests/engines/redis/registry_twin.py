"""Run the scripts of registries and of `once`, which include a lease, and their rules side by side: see script_twin.py.

The memory engine runs the rules, under the same clock that a test moves. After each step the answers and the wake-ups
are compared.
"""

from counters_twin import APART, MOVE, START_US
from script_twin import Difference

from holdfast import config
from holdfast.commands import Acquire, Break, Busy
from holdfast.engines.memory.engine import Domain, MemoryStore
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import PREFIX
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.rules.trust import DOUBT_MS, NEAR_HEARTBEAT_MS

CLIENTS = ("a", "b", "c")
# Longer than any program takes: script_twin.py compares when a name is forgotten.
MEMORY_MS = 24 * 3600 * 1000
WAKES = """
local woken, all = {}, redis.call('LRANGE', 'test:wakes', 0, -1)
for i = 1, #all, 2 do
  if all[i] ~= 'pop' then woken[#woken + 1] = all[i + 1] end  -- the other is a message, pushed to its mailbox
end
redis.call('DEL', 'test:wakes')
local endless = {}
for _, key in ipairs(redis.call('KEYS', ARGV[1])) do
  if redis.call('HEXISTS', 'test:ends', key) == 0 then endless[#endless + 1] = key end
end
return { woken, endless }
"""


class HandMovedClock:
    """The clock of both sides."""

    now_us = START_US

    def now_ns(self):
        return self.now_us * 1000

    def wall_us(self):
        return self.now_us


class Woken:
    """Collects the wake-ups of one step."""

    def __init__(self):
        self.tokens = []

    def wake(self, token):
        self.tokens.append(token)


class DoubtingStore(MemoryStore):
    """The memory engine, with heartbeats that count as long as on Redis, and with clients in doubt."""

    def answer(self, command):
        answer = self.answer_all((command,), None)[0]
        if type(command) is Acquire and command.wait and isinstance(answer, Busy):
            self.domain.alive_until_us[self.client] = self.clock.now_us + NEAR_HEARTBEAT_MS * 1000
        return answer

    def _moment(self, record, now_us):
        moment, alive, doubt_us = super()._moment(record, now_us), self.domain.alive_until_us, now_us + DOUBT_MS * 1000
        offered = {record.holder.client} if record.holder is not None and record.holder.offered else set()
        trusted = {*record.waiters.clients, *offered} - moment.silent - {self.client}
        if offered & trusted and record.holder.expires_us <= now_us:
            alive[record.holder.client] = min(alive[record.holder.client], doubt_us)
        return moment._replace(doubtful=frozenset(client for client in trusted if alive[client] <= doubt_us))


class RegistryTwin:
    """The scripts and the rules of all names of a program."""

    def __init__(self, url, mutation=None):
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packers = {client: Packer(PREFIX, client, MEMORY_MS) for client in CLIENTS}
        self._shas = {}
        for kind, script in SCRIPTS.items():
            text = APART + (script.text if mutation is None else mutation.applied_to(script.text))
            self._shas[kind] = (script.sha.encode(), self._ask(packed("SCRIPT", "LOAD", text))[0].encode())
        self._move, self._wakes = (self._ask(packed("SCRIPT", "LOAD", text))[0] for text in (MOVE, WAKES))

    def close(self):
        self._ask(packed("FLUSHALL"))
        self._link.close()

    def run(self, program):
        """Run a program on an empty server; raise `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        clock = HandMovedClock()
        domain = Domain("twin", clock)
        stores = {}
        for client in CLIENTS:
            stores[client] = DoubtingStore(domain, MEMORY_MS * 1000)
            stores[client].client = client
        for step in program:
            clock.now_us += step.after_us
            store, command = stores[step.client], self._resolved(domain, step.command)
            store.waiter_registry = Woken()
            rule = store.answer(command)
            script, woken, endless = self._by_script(step.client, command, clock.now_us)
            facts = {
                "answer": (rule, script),
                "wake-up": (store.waiter_registry.tokens, woken),
                "keys that never expire": ([], endless),
            }
            for fact, (wanted, found) in facts.items():
                if wanted != found:
                    raise Difference(
                        f"{fact} after {command} by {step.client} at +{clock.now_us - START_US}:\n"
                        f"  rule   {wanted}\n  script {found}"
                    )

    def _resolved(self, domain, command):
        """Fill in a fence, which is unknown before the program runs: 0 stands for the present one."""
        if not isinstance(command, Break):
            return command
        record = domain.records.get(command.name)
        return command._replace(fence=record.holder.fence if record and record.holder else 7)

    def _by_script(self, client, command, now_us):
        ours, theirs = self._shas[type(command)]
        seconds, micros = divmod(now_us, 1_000_000)
        _, reply, (woken, endless) = self._ask(
            packed("EVALSHA", self._move, "0", str(seconds), str(micros)),
            self._packers[client].pack(command).replace(ours, theirs),
            packed("EVALSHA", self._wakes, "0", f"{PREFIX}:*"),
        )
        return answered(type(command), reply), woken, endless

    def _ask(self, *commands):
        replies = self._link.exchange(b"".join(commands), len(commands), 5.0)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

"""Run a counter's script and its rule side by side, under a clock that a test moves: see script_twin.py."""

from dataclasses import dataclass
from typing import Any

from script_twin import BETWEEN, Difference

from holdfast import config
from holdfast.engines.redis.connect import connector_of
from holdfast.engines.redis.connection_blocking import RedisConnection
from holdfast.engines.redis.keys import PREFIX, record_key
from holdfast.engines.redis.replies import answered
from holdfast.engines.redis.resp import packed
from holdfast.engines.redis.scripts import SCRIPTS, Packer
from holdfast.rules import Moment
from holdfast.rules.counters import until_us
from holdfast.rules.table import RULES, RuleKind, commands_of

# Only the clock of the test expires keys: a window may be shorter than the test takes.
APART = BETWEEN.replace(
    "  return send(name, key, ...)",
    """
  if name == 'SET' then return send(name, key, rest[1]) end
  return send(name, key, ...)""",
)
NAME = "one name"
START_US = 1_700_000_000_000_000
MOVE = """
redis.call('DEL', 'test:time')
redis.call('RPUSH', 'test:time', ARGV[1], ARGV[2])
local now = ARGV[1] * 1000000 + ARGV[2]
local ended = {}
for _, key in ipairs(redis.call('HKEYS', 'test:ends')) do
  if tonumber(redis.call('HGET', 'test:ends', key)) <= now then
    redis.call('DEL', key)
    redis.call('HDEL', 'test:ends', key)
    ended[#ended + 1] = key
  end
end
return ended
"""


@dataclass(frozen=True)
class Step:
    """One step: the time that passes before it, which may be negative, and the command."""

    after_us: int
    command: Any


class CountersTwin:
    """The scripts and the rules of one name, for every kind of counter."""

    def __init__(self, url, mutation=None):
        self._link = RedisConnection(connector_of(config.settings(url)))
        self._packer = Packer(PREFIX, "client", 60_000)
        self._shas = {}
        for kind in commands_of(RuleKind.COUNTER):
            script = SCRIPTS[kind]
            text = APART + (script.text if mutation is None else mutation.applied_to(script.text))
            self._shas[kind] = (script.sha.encode(), self._ask(packed("SCRIPT", "LOAD", text)).encode())
        self._move = self._ask(packed("SCRIPT", "LOAD", MOVE))

    def close(self):
        self._ask(packed("FLUSHALL"))
        self._link.close()

    def run(self, program):
        """Run a program on an empty server; raise `Difference` at the first step in which the two differ."""
        self._ask(packed("FLUSHALL"))
        now_us, began_us, kept = START_US, 0, {}
        for step in program:
            now_us += step.after_us
            seconds, micros = divmod(now_us, 1_000_000)
            for key in self._ask(packed("EVALSHA", self._move, "0", str(seconds), str(micros))):
                # It has expired for good, even if the clock is set back now; so it must not expire too early.
                counter, last = kept.pop(key.removeprefix(f"{record_key(PREFIX, NAME)}:"))
                if until_us(counter, last) > now_us:
                    raise Difference(f"{key} ended at +{now_us - START_US}, before {counter} did")
            command = step.command
            if getattr(command, "began_us", None) == -1:
                command = command._replace(began_us=began_us)
            before = kept.get(command.kind, (None,))[0]
            after, rule = RULES[type(command)].apply(before, command, Moment(0, now_us, ""))
            if after is None:
                kept.pop(command.kind, None)
            elif after is not before:
                kept[command.kind] = (after, command)
            began_us = getattr(rule, "began_us", 0) or began_us
            ours, theirs = self._shas[type(command)]
            reply = self._ask(self._packer.pack(command).replace(ours, theirs))
            script = answered(type(command), reply)
            if rule != script:
                raise Difference(f"answer to {command} at +{now_us - START_US}:\n  rule   {rule}\n  script {script}")
            self._check_expiries()

    def _check_expiries(self):
        keys = self._ask(packed("KEYS", f"{record_key(PREFIX, '*')}*"))
        endless = [key for key in keys if not self._ask(packed("HEXISTS", "test:ends", key))]
        if endless:
            raise Difference(f"keys that never expire: {endless}")

    def _ask(self, command):
        reply = self._link.exchange(command, 1, 5.0)[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

"""What holdfast may leave on a server, and a look at what it did leave."""

import re
import threading
from contextlib import suppress

from holdfast.testing import eventually

# What may outlive a client: the record of a name with its last fence, and the tomb of a token; both end by themselves.
RECORD = re.compile(rb"hf1:(?:[\w.-]+:)?\{[^}]+\}(?::pool|:rwlock|:mq|:semaphore(?::[if])?|:e:[^:]+)?")
TOMB = re.compile(RECORD.pattern + rb":d:[0-9a-z-]+")
MOST_KEPT_MS = 62_000 + 60_000
# The bell of a waiter that did not come to pop it, gone with its offer.
BELL = re.compile(RECORD.pattern + rb":k:[0-9a-z-]+")
BELL_KEPT_MS = 1_000
# What is counted or noted, gone with its longest window.
TALLY = re.compile(RECORD.pattern + rb":(?:[lg]:[0-9,]+|[bo]|[shp]:.*|said:.*|dup:.*)", re.DOTALL)
TALLY_KEPT_MS = 31 * 86400 * 1000
GONE_MS = -2


def running():
    """The threads of holdfast in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}


def left_behind(server, before):
    """What holdfast still has there, and what it should not have left; nothing, if all is well.

    What ran `before` was left by another test, which has been told: it is not told to all that follow.
    """
    clients = [line for line in server.command("CLIENT", "LIST").split(b"\n") if b" name=holdfast " in line]
    channels = server.command("PUBSUB", "CHANNELS", "hf1:*")
    patterns = server.command("PUBSUB", "NUMPAT")
    threads = [thread.name for thread in running() - before]
    return clients + channels + [patterns] * bool(patterns) + threads


def keys_left(server):
    """Keys that are neither a fence record nor a tomb, or would stay for ever."""
    keys = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
    keys = {key: ms for key, ms in keys.items() if ms != GONE_MS}  # some have just come to their end
    wrong = [key for key in keys if not any(kind.fullmatch(key) for kind in (RECORD, TOMB, BELL, TALLY))]
    return wrong + [key for key, ms in keys.items() if not 0 <= ms <= _kept_ms(key)]


def _kept_ms(key):
    if TALLY.fullmatch(key):
        return TALLY_KEPT_MS
    return BELL_KEPT_MS if BELL.fullmatch(key) else MOST_KEPT_MS


def look_after(server, before=frozenset()):
    """The look after every test."""
    with suppress(TimeoutError):
        eventually(lambda: not left_behind(server, before), what="an end of what was open")
    left = left_behind(server, before)
    assert left == [], left
    if server.command("ROLE")[0] == b"master":  # a replica has what its master has
        keys = keys_left(server)
        assert keys == [], keys

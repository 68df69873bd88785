"""The keys that holdfast may leave on a server, and the check of the keys that it did leave."""

import re
import threading
from contextlib import suppress

from holdfast.testing import eventually

# These may outlive a client, and all expire: the record of a name with its last fence, and the tombstone of a token.
RECORD = re.compile(rb"hf2:(?:[\w.-]+:)?\{[^}]+\}(?::pool|:rwlock|:queue|:semaphore(?::(?:items|free))?|:e:[^:]+)?")
TOMBSTONE = re.compile(RECORD.pattern + rb":ended:[0-9a-z-]+")
RECORD_MAX_MS = 62_000 + 60_000
# The wake-up of a waiter that did not pop it expires with its offer.
WAKEUP = re.compile(RECORD.pattern + rb":wakeup:[0-9a-z-]+")
WAKEUP_MAX_MS = 1_000
# Counters, markers, indexes, mailboxes, publishes, results and deduplication keys expire with their longest window.
COUNTER = re.compile(
    RECORD.pattern + rb":(?:[lg]:[0-9,]+|[bo]|published|(?:index|successor|mailbox|result|dedup):.*)", re.DOTALL
)
COUNTER_MAX_MS = 31 * 86400 * 1000
# The marker that clients of layout 1 read.
MARKER = re.compile(rb"hf1:(?:[\w.-]+:)?layout")
MARKER_MAX_MS = COUNTER_MAX_MS + 86400 * 1000  # a test may set the clock back
EXPIRED_MS = -2


def running():
    """Return the threads of holdfast in this process."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("holdfast")}


def left_behind(server, before):
    """Return the connections, channels and threads that holdfast still has.

    Threads that ran `before` belong to another test, which has failed for them already.
    """
    clients = [line for line in server.command("CLIENT", "LIST").split(b"\n") if b" name=holdfast " in line]
    channels = server.command("PUBSUB", "CHANNELS", "hf2:*")
    patterns = server.command("PUBSUB", "NUMPAT")
    threads = [thread.name for thread in running() - before]
    return clients + channels + [patterns] * bool(patterns) + threads


def keys_left(server):
    """Return keys that may not be left, and keys that would never expire."""
    keys = {key: server.command("PTTL", key) for key in server.command("KEYS", "*")}
    keys = {key: ms for key, ms in keys.items() if ms != EXPIRED_MS}
    wrong = [
        key for key in keys if not any(kind.fullmatch(key) for kind in (RECORD, TOMBSTONE, WAKEUP, COUNTER, MARKER))
    ]
    return wrong + [key for key, ms in keys.items() if not 0 <= ms <= _max_ms(key)]


def _max_ms(key):
    if COUNTER.fullmatch(key):
        return COUNTER_MAX_MS
    if MARKER.fullmatch(key):
        return MARKER_MAX_MS
    return WAKEUP_MAX_MS if WAKEUP.fullmatch(key) else RECORD_MAX_MS


def look_after(server, before=frozenset()):
    """Check after a test that nothing is left."""
    with suppress(TimeoutError):
        eventually(lambda: not left_behind(server, before), what="everything closed")
    left = left_behind(server, before)
    assert left == [], left
    if server.command("ROLE")[0] == b"master":  # a replica has the keys of its master
        keys = keys_left(server)
        assert keys == [], keys

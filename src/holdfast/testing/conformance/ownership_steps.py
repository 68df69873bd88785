"""Steps that the laws of ownership share."""

from holdfast import Assigned, NotAcquired

TTL_S = 1.0


def sessions(client, **options):
    return client.queue("sessions", **{"ttl": TTL_S, "grace": 0.2, **options})


def open_sessions(queue, count):
    for number in range(count):
        queue.publish({"user": number}, key=f"chat-{number}")


def added(owner, count, timeout=20):
    """Return the next `count` assignments of an owner; any other event fails the law."""
    works = []
    while len(works) < count:
        event = owner.next(timeout)
        assert isinstance(event, Assigned), event
        works.append(event.assignment)
    return works


def claimed(owner, key):
    try:
        return owner.claim(key)
    except NotAcquired:
        return None

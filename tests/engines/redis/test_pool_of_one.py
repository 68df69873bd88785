"""A client object with a pool of one connection: holdfast opens its own, so that no caller waits for it."""

import threading
import time

import redis

import holdfast


def test_a_reader_that_waits_keeps_its_lease_and_leaves_the_only_connection_to_its_owner(server):
    """T34: it waits for three ttls, its lease is renewed all the time, and it receives the message that comes then."""
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=server.port, max_connections=1, timeout=1)
    theirs, events, got = redis.Redis(connection_pool=pool), [], []
    with holdfast.connect(theirs, observer=events.append) as hf:
        queue = hf.queue("jobs", ttl=1, grace=0.2)
        with hf.lock("kept", ttl=1) as lease, queue.consumer() as consumer:
            reader = threading.Thread(target=lambda: got.extend(consumer.receive(timeout=30)))
            reader.start()
            until = time.monotonic() + 3
            while time.monotonic() < until:
                assert theirs.ping()
                lease.check()
                assert len(queue.consumers()) == 1
                time.sleep(0.1)
            queue.publish("late")
            reader.join(30)
            (message,) = got
            message.ack()
        assert (message.body, message.attempt) == ("late", 1)
        assert queue.stats().counts["acked"] == 1
        assert [event.kind for event in events if event.kind in ("lost", "reclaimed", "unavailable")] == []
    theirs.close()

"""The names of the parts of a partitioned queue, and messages that go into several of them at once."""

from binascii import crc_hqx

import pytest

import holdfast
from holdfast import InvalidConfig, InvalidName, QueueFull
from holdfast.core.queue.partitions import part_name, part_of
from holdfast.engines.redis.keys import record_key


@pytest.mark.parametrize("whole", ["sessions", "team/sessions", "a}b{c", "100%", "größe"])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_the_parts_are_spread_over_all_slots_whatever_the_name(whole, parts):
    """Computed from the keys that the servers see: so a cluster has parts on all its masters."""
    keys = [record_key("hf2", part_name(whole, part, parts)) for part in range(parts)]
    tags = [key[key.index("{") + 1 : key.index("}")] for key in keys]
    assert [crc_hqx(tag.encode(), 0) % 16384 * parts // 16384 for tag in tags] == list(range(parts))


@pytest.fixture
def parts(request):
    with holdfast.connect("memory://") as client:
        yield client.queue(f"parts of {request.node.name}", bound=3).partitioned(4)


def test_a_body_that_cannot_be_encoded_is_refused_before_any_message_is_sent(parts):
    """Otherwise a caller that tries again would send the first messages twice."""
    with pytest.raises(InvalidConfig, match="encode"):
        parts.publish_many([*range(6), object()], key=lambda body: f"key {body if isinstance(body, int) else 'x'}")
    assert sum(parts.stats()[1:6]) == 0


def test_queue_full_lists_what_was_sent_into_all_parts(parts):
    """Some messages went into parts that had room, before the one that has none."""
    keys = {part_of(f"key {number}", 4): f"key {number}" for number in range(40)}
    full, other = keys[0], keys[1]
    first = parts.publish_many(range(2), key=full)
    with pytest.raises(QueueFull) as refused:
        parts.publish_many([other, other, full, full], key=lambda body: body)

    assert refused.value.retryable is False
    assert set(refused.value.sent) == {seen.id for part in parts.parts for seen in all_of(part)} - set(first)
    assert len(refused.value.sent) == 2


@pytest.mark.parametrize("key", [None, "order-9"])
def test_a_dedup_key_is_sent_once_whatever_the_part(key):
    """Each part remembers its own dedup keys, so a dedup key must always go to the same part."""
    with holdfast.connect("memory://") as client:
        whole = client.queue(f"sent once {key}").partitioned(64)
        assert len({whole.publish("order", key=key, dedup_key="order-9") for _ in range(9)}) == 1
        assert whole.stats().ready == 1


def test_an_error_about_a_dedup_key_names_it(parts):
    """A reader of "a name" or "a key" would look for another argument."""
    for queue in (parts, parts.parts[0]):
        with pytest.raises(InvalidName, match=r"^7 is refused: a dedup_key must be text"):
            queue.publish("order", dedup_key=7)


@pytest.mark.parametrize("name", ["worker", "consumer", "consumers", "dlq", "peek"])
def test_an_attribute_that_only_parts_have_is_explained(parts, name):
    """The author of a program whose queue is now partitioned learns where its workers are."""
    assert hasattr(parts.parts[0], name)
    assert not hasattr(parts, name)
    with pytest.raises(AttributeError, match=f"no `{name}`: use the `{name}` of each queue in its `parts`"):
        getattr(parts, name)


def test_an_unknown_attribute_gives_the_usual_error(parts):
    """A misspelt name has nothing to do with parts."""
    with pytest.raises(AttributeError, match="'PartitionedQueue' object has no attribute 'workers'"):
        parts.workers  # noqa: B018 - the access is the test


def all_of(part):
    return [*part.peek("ready"), *part.peek("behind")]

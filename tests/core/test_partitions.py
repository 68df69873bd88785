"""The names of the parts of a queue, and what is sent into several of them at once."""

from binascii import crc_hqx

import pytest

import holdfast
from holdfast import InvalidConfig, InvalidName, QueueFull
from holdfast.core.queue.partitions import part_name, part_of
from holdfast.engines.redis.keys import record_key


@pytest.mark.parametrize("whole", ["sessions", "team/sessions", "a}b{c", "100%", "größe"])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_each_part_is_in_its_own_part_of_all_slots_whatever_the_name(whole, parts):
    """By the keys that the servers see: so a cluster has parts on all its masters."""
    keys = [record_key("hf2", part_name(whole, part, parts)) for part in range(parts)]
    tags = [key[key.index("{") + 1 : key.index("}")] for key in keys]
    assert [crc_hqx(tag.encode(), 0) % 16384 * parts // 16384 for tag in tags] == list(range(parts))


@pytest.fixture
def parts(request):
    with holdfast.connect("memory://") as client:
        yield client.queue(f"parts of {request.node.name}", bound=3).partitioned(4)


def test_a_body_that_cannot_be_sent_is_refused_before_any_part_has_one(parts):
    """Whichever part it would have gone to: what was sent already would be sent twice by who tries again."""
    with pytest.raises(InvalidConfig, match="encode"):
        parts.publish_many([*range(6), object()], key=lambda body: f"key {body if isinstance(body, int) else 'x'}")
    assert sum(parts.stats()[1:6]) == 0


def test_the_error_tells_what_was_sent_into_all_parts(parts):
    """Some went into parts that had room, before the one that has none."""
    keys = {part_of(f"key {number}", 4): f"key {number}" for number in range(40)}
    full, other = keys[0], keys[1]
    first = parts.publish_many(range(2), key=full)
    with pytest.raises(QueueFull) as refused:
        parts.publish_many([other, other, full, full], key=lambda body: body)

    assert refused.value.retryable is False
    assert set(refused.value.sent) == {seen.id for part in parts.parts for seen in all_of(part)} - set(first)
    assert len(refused.value.sent) == 2


@pytest.mark.parametrize("key", [None, "order-9"])
def test_a_dedup_key_is_sent_once_in_whichever_part(key):
    """Each part remembers its own. What is sent anywhere would be sent once into each of them."""
    with holdfast.connect("memory://") as client:
        whole = client.queue(f"sent once {key}").partitioned(64)
        assert len({whole.publish("order", key=key, dedup_key="order-9") for _ in range(9)}) == 1
        assert whole.stats().ready == 1


def test_a_dedup_key_that_is_refused_is_called_so(parts):
    """It is no name and no key: who reads that would look for another argument."""
    for queue in (parts, parts.parts[0]):
        with pytest.raises(InvalidName, match=r"^7 is refused: a dedup_key must be text"):
            queue.publish("order", dedup_key=7)


@pytest.mark.parametrize("word", ["worker", "consumer", "consumers", "dlq", "peek"])
def test_what_only_parts_have_is_said_to_be_there(parts, word):
    """Whoever had a queue, and has it in parts now, would not know where its workers are."""
    assert hasattr(parts.parts[0], word)
    assert not hasattr(parts, word)
    with pytest.raises(AttributeError, match=f"no `{word}` of the whole: each of its `parts` has one"):
        getattr(parts, word)


def test_what_nobody_has_is_told_as_ever(parts):
    """A slip in a word is no question for parts."""
    with pytest.raises(AttributeError, match="'PartitionedQueue' object has no attribute 'workers'"):
        parts.workers  # noqa: B018 - it is the question


def all_of(part):
    return [*part.peek("ready"), *part.peek("behind")]

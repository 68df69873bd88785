"""The names of the parts of a queue, and what is sent into several of them at once."""

from binascii import crc_hqx

import pytest

import holdfast
from holdfast import InvalidConfig, QueueFull
from holdfast.core.partitions import part_name, part_of
from holdfast.engines.redis.scripts import record_key


@pytest.mark.parametrize("whole", ["sessions", "team/sessions", "a}b{c", "100%", "größe"])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_each_part_is_in_its_own_part_of_all_slots_whatever_the_name(whole, parts):
    """By the keys that the servers see: so a cluster has parts on all its masters."""
    keys = [record_key("hf1", part_name(whole, part, parts)) for part in range(parts)]
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


def all_of(part):
    return [*part.peek("ready"), *part.peek("behind")]

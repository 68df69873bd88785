"""The names of the parts of a queue."""

from binascii import crc_hqx

import pytest

from holdfast.core.partitions import part_name
from holdfast.engines.redis.scripts import record_key


@pytest.mark.parametrize("whole", ["sessions", "team/sessions", "a}b{c", "100%", "größe"])
@pytest.mark.parametrize("parts", [1, 3, 8])
def test_each_part_is_in_its_own_part_of_all_slots_whatever_the_name(whole, parts):
    """By the keys that the servers see: so a cluster has parts on all its masters."""
    keys = [record_key("hf1", part_name(whole, part, parts)) for part in range(parts)]
    tags = [key[key.index("{") + 1 : key.index("}")] for key in keys]
    assert [crc_hqx(tag.encode(), 0) % 16384 * parts // 16384 for tag in tags] == list(range(parts))

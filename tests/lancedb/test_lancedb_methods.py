"""No method of LanceDB's own tables leads around the gate: each is known as a read, gated, or refused."""

import lancedb.table
import pytest

from holdfast.contrib.lancedb import GuardedStore
from holdfast.contrib.lancedb.reading import GATED, READS, REFUSED
from holdfast.errors import NotPermitted

CLASSES = [lancedb.table.Table, lancedb.table.LanceTable, lancedb.table.AsyncTable]


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_method_of_a_lancedb_table_is_classified(kind):
    """A new version of LanceDB that has a new method fails here, and until then that method is refused."""
    unknown = public(kind) - READS - set(GATED) - set(REFUSED)

    assert unknown == set(), "say of each whether it reads, is gated or refused"


def test_nothing_is_classified_twice_or_in_vain():
    """A name that no class has is a slip, and hides one."""
    everything = set().union(*(public(kind) for kind in CLASSES))

    assert READS & set(GATED) == READS & set(REFUSED) == set(GATED) & set(REFUSED) == set()
    assert READS - everything == set(GATED) - everything == set(REFUSED) - everything == set()


def test_every_gated_method_has_its_way_through_the_gate():
    """What is refused with an advice can be done as advised."""
    assert [name for name in GATED.values() if not callable(getattr(GuardedStore, name, None))] == []


@pytest.mark.parametrize("name", [*sorted(GATED), *sorted(REFUSED), "_table_of_tomorrow", "made_up", "_conn", "_inner"])
def test_a_reader_passes_on_nothing_but_reads(opened, name):
    """Also not what nobody has heard of, or what is private."""
    reader = opened().table

    with pytest.raises(NotPermitted):
        getattr(reader, name)
    assert not hasattr(reader, "__wrapped__"), "Python may ask what it is"

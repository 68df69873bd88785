"""Every method of LanceDB's own tables is classified as a read, as locked, or as refused."""

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
    """A new method of a LanceDB version fails this test; until it is classified, the store refuses it."""
    unknown = public(kind) - READS - set(GATED) - set(REFUSED)

    assert unknown == set(), "say of each whether it reads, is gated or refused"


def test_no_method_is_classified_twice_or_unknown():
    """An unknown name is a mistake and may hide another one."""
    everything = set().union(*(public(kind) for kind in CLASSES))

    assert READS & set(GATED) == READS & set(REFUSED) == set(GATED) & set(REFUSED) == set()
    assert READS - everything == set(GATED) - everything == set(REFUSED) - everything == set()


def test_every_locked_method_names_an_existing_alternative():
    """Every alternative that a refusal names exists."""
    assert [name for name in GATED.values() if not callable(getattr(GuardedStore, name, None))] == []


@pytest.mark.parametrize("name", [*sorted(GATED), *sorted(REFUSED), "_table_of_tomorrow", "made_up", "_conn", "_inner"])
def test_a_reader_allows_only_reads(opened, name):
    """It refuses unknown and private methods too."""
    reader = opened().table

    with pytest.raises(NotPermitted):
        getattr(reader, name)
    assert not hasattr(reader, "__wrapped__"), "Python may ask what it is"

"""The read-only views of a SQLite file for people and tools."""

import holdfast
from holdfast.engines.sqlite import admin


def test_names_are_read_in_small_pages(tmp_path, monkeypatch):
    """A client that wants a lease meanwhile waits for one page, not for all; no name is repeated or left out."""
    monkeypatch.setattr(admin, "_AT_ONCE", 3)
    pages = []
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as hf:
        for name in ["a", "b", "c/1", "c/2", "c/\U0010ffff", "c/é", "c0", *(f"d/{number}" for number in range(9))]:
            hf.lock(name).acquire().release()
        database = hf._client.engine.store.database
        transact = database.transact

        def counted(look, *more):
            answer = transact(look, *more)
            if look.__qualname__.startswith("names."):
                pages.append(answer)
            return answer

        monkeypatch.setattr(database, "transact", counted)
        some = {prefix: admin.names(database, prefix, 100) for prefix in ("c/", "d/", "none")}
        everything, cut = admin.names(database, "", 100), admin.names(database, "d/", 4)
        exact = admin.names(database, "d/", 9)

    assert some["c/"].names == ("c/1", "c/2", "c/é", "c/\U0010ffff")
    assert some["d/"].names == exact.names == tuple(f"d/{number}" for number in range(9))
    assert (some["none"].names, some["none"].more) == ((), False)
    assert (len(everything.names), len(set(everything.names)), everything.more) == (16, 16, False)
    assert (len(cut.names), cut.more, exact.more) == (4, True, False)
    assert max(map(len, pages)) == 3

"""What people ask of a SQLite file."""

import holdfast
from holdfast.engines.sqlite import admin as survey


def test_names_are_read_a_few_at_a_time(tmp_path, monkeypatch):
    """Whoever wants a lease meanwhile waits for one look, not for all of them; nothing is told twice or left out."""
    monkeypatch.setattr(survey, "_AT_ONCE", 3)
    looks = []
    with holdfast.connect(f"sqlite://{tmp_path}/x.db") as hf:
        for name in ["a", "b", "c/1", "c/2", "c/\U0010ffff", "c/é", "c0", *(f"d/{number}" for number in range(9))]:
            hf.lock(name).acquire().release()
        database = hf._client.engine.store.database
        transact = database.transact

        def counted(look, *more):
            answer = transact(look, *more)
            if look.__qualname__.startswith("names."):
                looks.append(answer)
            return answer

        monkeypatch.setattr(database, "transact", counted)
        some = {prefix: survey.names(database, prefix, 100) for prefix in ("c/", "d/", "nobody")}
        everything, cut = survey.names(database, "", 100), survey.names(database, "d/", 4)
        exact = survey.names(database, "d/", 9)

    assert some["c/"].names == ("c/1", "c/2", "c/é", "c/\U0010ffff")
    assert some["d/"].names == exact.names == tuple(f"d/{number}" for number in range(9))
    assert (some["nobody"].names, some["nobody"].more) == ((), False)
    assert (len(everything.names), len(set(everything.names)), everything.more) == (16, 16, False)
    assert (len(cut.names), cut.more, exact.more) == (4, True, False)
    assert max(map(len, looks)) == 3

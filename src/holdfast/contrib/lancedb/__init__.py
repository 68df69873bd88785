"""A LanceDB table that many processes write at once, each mutation through one gate (extra `lancedb`).

    store = open_store("/srv/memory", "memories", "embedded", schema=schema)
    store.add({"id": "1", "text": "the user likes tea", "vector": embed("the user likes tea")})

Only `fence.py` and `gate.py` decide who may write; `line.py` has the writers of one process share a lease; `writing.py`
has every mutation once; `blocking.py` and `aio.py` are the two faces.
"""

from holdfast.contrib.extras import brought_by

with brought_by("lancedb", "lancedb", "lance", "pyarrow"):
    from holdfast.contrib.lancedb.blocking import GuardedStore, open_store
    from holdfast.contrib.lancedb.desk import Status
    from holdfast.contrib.lancedb.settings import MODES, URL_VARIABLE, Settings
    from holdfast.contrib.lancedb.writing import Tidied, Written

__all__ = ["MODES", "URL_VARIABLE", "GuardedStore", "Settings", "Status", "Tidied", "Written", "open_store"]

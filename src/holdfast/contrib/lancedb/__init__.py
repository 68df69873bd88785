"""A LanceDB table that many processes write at once, every mutation under one writer lock.

    store = open_store("/srv/memory", "memories", "embedded", schema=schema)
    store.add({"id": "1", "text": "the user likes tea", "vector": embed("the user likes tea")})

Only `fence.py` and `writer_lock.py` decide which process may write. With `write_queue.py` the writers of one process
share a lease. `writing.py` has every mutation once; `blocking.py` and `aio.py` are the two faces.

The wheel `holdfast` has this module only, for its error; `holdfast-lancedb` has the others and requires LanceDB.
"""

from holdfast._lazy import Requires

with Requires("holdfast-lancedb", __name__, "lancedb", "lance", "pyarrow"):
    from holdfast.contrib.lancedb.blocking import GuardedStore, open_store
    from holdfast.contrib.lancedb.settings import MODES, URL_VARIABLE, StoreSettings
    from holdfast.contrib.lancedb.shared_table import StoreStatus
    from holdfast.contrib.lancedb.writing import OptimizeResult, Written

__all__ = [
    "MODES",
    "URL_VARIABLE",
    "GuardedStore",
    "OptimizeResult",
    "StoreSettings",
    "StoreStatus",
    "Written",
    "open_store",
]

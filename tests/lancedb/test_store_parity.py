"""The two faces of a store have the same names and shapes."""

import inspect

from holdfast.contrib.lancedb import aio, blocking

AWAITED = {"__aenter__": "__enter__", "__aexit__": "__exit__"}
NOTHING_TO_AWAIT = {"directory", "schema", "status"}


def shapes(module):
    members = dict(vars(module.GuardedStore)) | {"open_store": module.open_store}
    return {
        AWAITED.get(name, name): inspect.signature(each).replace(return_annotation=inspect.Signature.empty)
        for name, each in members.items()
        if inspect.isfunction(each)
    }


def test_both_faces_of_a_store_have_the_same_parameters():
    """A user of one face knows the other. Only the table itself is an attribute in one and a coroutine in the other."""
    asyncio_shapes = shapes(aio)
    assert str(asyncio_shapes.pop("table")) == "(self)"

    assert asyncio_shapes == shapes(blocking)


def test_every_waiting_method_of_the_asyncio_face_is_a_coroutine():
    """One write that blocks the loop would stop all tasks."""
    public = {name for name in dir(aio.GuardedStore) if not name.startswith("_")} - NOTHING_TO_AWAIT

    assert [name for name in public if not inspect.iscoroutinefunction(getattr(aio.GuardedStore, name))] == []

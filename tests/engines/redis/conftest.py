"""Real servers, one of each kind for all tests, and a check of what each test left behind."""

import os
from contextlib import ExitStack
from functools import partial

import pytest
from expiry_events import Listener
from leftovers import look_after, running
from redis_faces import Loop, Place

from holdfast.engines.redis.scripts import SCRIPTS
from holdfast.testing.servers import Server, available, missing
from tests.support.clusters import Cluster
from tests.support.sentinels import Sentinels
from tests.support.tls_front import server_of

# `make matrix` names them all.
WANTED = os.environ.get("HOLDFAST_SERVERS", "valkey").split(",")
KINDS = [kind for kind in WANTED if kind in available()] or sorted(available(), reverse=True)

FACES = ["blocking", "asyncio"]
# A busy machine keeps a living server silent for more than the half second that is the default: a failover that no test
# has asked for may lose what was not replicated yet.
GROUPS = {"sentinel": partial(Sentinels, down_ms=1500), "cluster": Cluster}
ALL_GROUPS = os.environ.get("HOLDFAST_GROUPS") == "all"
GROUP_KINDS = KINDS if ALL_GROUPS else KINDS[:1]
NOTHING = pytest.mark.skip(missing())
NO_KIND, NO_GROUP = [pytest.param("none", marks=NOTHING)], [pytest.param(("none", "none"), marks=NOTHING)]


def pytest_collection_modifyitems(items):
    """Both faces on the first kind of server; on the others, and in `paired` tests, one face after the other.

    Groups of servers, and `lengthy` tests on them, in full only if `make matrix` asks for it.
    """
    items[:] = [item for item in items if not (hasattr(item, "callspec") and _left_out(item))]


def _left_out(item):
    where = item.callspec.params
    if not ALL_GROUPS and {"group", "cluster", "sentinels"} & where.keys():
        # Without `make matrix`: each law with one face here and the other there, and none that takes long.
        sort = 0 if "sentinel" in item.name else 1
        face = FACES.index(where.get("face", FACES[0]))
        both = "face" not in where or (sort + face + len(item.originalname)) % 2 == 0
        return not both or getattr(item.function, "lengthy", False)
    if len(KINDS) < 2 or where.get("server") not in KINDS or where.get("face") not in FACES:
        return False
    kind, face = KINDS.index(where["server"]), FACES.index(where["face"])
    return (kind > 0 or getattr(item.function, "paired", False)) and (kind + face) % 2 == 1


@pytest.fixture(scope="session")
def _servers():
    started = {}
    yield started
    for server in started.values():
        server.close()


@pytest.fixture(scope="session")
def loop():
    """The loop of the asyncio face."""
    loop = Loop()
    yield loop
    loop.close()


def _lent(servers, kind):
    if kind not in servers:
        servers[kind] = Server(kind).start()
        know_scripts(servers[kind])
    servers[kind].command("FLUSHALL")
    before = running()
    yield servers[kind]
    look_after(servers[kind], before)


def know_scripts(server):
    """Load the scripts: otherwise the first call of each gets NOSCRIPT, and counts are off by one."""
    for script in SCRIPTS.values():
        server.command("SCRIPT", "LOAD", script.text)


@pytest.fixture(params=KINDS or NO_KIND)
def server(request, _servers):
    """One server of each kind, empty at the start; a test that leaves something behind fails."""
    yield from _lent(_servers, request.param)


@pytest.fixture
def one_server(_servers):
    """A server of the first kind, for slow tests that do not depend on the kind."""
    if not KINDS:
        pytest.skip(missing())
    yield from _lent(_servers, KINDS[0])


@pytest.fixture
def new_server():
    """Start servers for this test alone, with their own settings."""
    started, before = [], running()

    def start(kind=None, **options):
        started.append(server_of(kind or KINDS[0], **options).start())
        know_scripts(started[-1])
        return started[-1]

    with ExitStack() as closing:
        closing.callback(lambda: [server.close() for server in started])  # also where something was left
        yield start
        for server in started:
            if server.alive:
                look_after(server, before)


@pytest.fixture(params=FACES)
def face(request):
    return request.param


@pytest.fixture
def one_peer(one_server, loop):
    """A client that sends plain commands to one server."""
    place = Place(one_server, "blocking", loop)
    yield place.peer()
    place.close()
    one_server.command("FLUSHALL")


def _place(server, face, loop):
    place = Place(server, face, loop)
    yield place
    place.close()


@pytest.fixture(scope="session")
def _groups():
    started = {}
    yield started
    for group in started.values():
        group.close()


def _lent_group(groups, sort, kind):
    if (sort, kind) not in groups:
        groups[sort, kind] = GROUPS[sort](kind)
        groups[sort, kind].start()
    group = groups[sort, kind]
    group.heal()
    for server in group.servers:
        if server.command("ROLE")[0] == b"master":
            server.command("FLUSHALL")
    before = running()
    yield group
    group.heal()
    for server in group.servers:
        look_after(server, before)


@pytest.fixture(params=[(sort, kind) for sort in GROUPS for kind in GROUP_KINDS] or NO_GROUP, ids="-".join)
def group(request, _groups):
    """A primary with sentinels, and a cluster: whole and empty at the start; leftovers fail the test."""
    yield from _lent_group(_groups, *request.param)


@pytest.fixture(params=GROUP_KINDS or [pytest.param("none", marks=pytest.mark.skip(missing()))])
def cluster(request, _groups):
    """A cluster alone."""
    yield from _lent_group(_groups, "cluster", request.param)


@pytest.fixture(params=GROUP_KINDS or [pytest.param("none", marks=pytest.mark.skip(missing()))])
def sentinels(request, _groups):
    """A primary with sentinels alone."""
    yield from _lent_group(_groups, "sentinel", request.param)


@pytest.fixture
def grouped(group, face, loop):
    """Each group of servers through both faces."""
    yield from _place(group, face, loop)


@pytest.fixture
def clustered(cluster, face, loop):
    """A cluster through both faces."""
    yield from _place(cluster, face, loop)


@pytest.fixture
def place(server, face, loop):
    """Every kind of server through both faces."""
    yield from _place(server, face, loop)


@pytest.fixture
def sync(server, loop):
    """Every kind of server through the blocking face."""
    yield from _place(server, "blocking", loop)


@pytest.fixture
def slow(one_server, face, loop):
    """One server through both faces."""
    yield from _place(one_server, face, loop)


@pytest.fixture
def place_on(new_server, face, loop):
    """Both faces on a server of this test alone."""
    places = []

    def make(server, face=face):
        places.append(Place(server, face, loop))
        return places[-1]

    yield make
    for place in places:
        place.close()


@pytest.fixture
def place_in(loop):
    """Servers that a test has started, through the blocking face."""
    return lambda server: Place(server, "blocking", loop)


@pytest.fixture
def listen():
    """Open clients that listen for expired sessions; they are closed after the test."""
    opened = []

    def open_one(*args, **kwargs):
        opened.append(Listener(*args, **kwargs))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()

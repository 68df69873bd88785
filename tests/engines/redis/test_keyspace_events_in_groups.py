"""Expired consumer sessions on every master: one subscription each, also after failovers."""

import pytest
from expiry_events import SETTING, WAIT_S, expire, letters, subscribed, until_subscribed
from leftovers import look_after

from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import available
from tests.support.clusters import Cluster

KIND = next(iter(available()), "valkey")
NAMES = [f"queue/{number}" for number in range(30)]
WANTED = {"E", "x"}


def silence(servers):
    """Reset the setting: the engine leaves it, and the next test must not find it."""
    for server in servers:
        server.command("CONFIG", "SET", SETTING, "")


@pytest.fixture
def quiet(group):
    """A group whose servers publish no events: the default."""
    silence(group.servers)
    yield group
    group.heal()
    silence(group.servers)


@pytest.fixture
def quiet_cluster(cluster):
    """A cluster whose servers publish no events."""
    silence(cluster.servers)
    yield cluster
    cluster.heal()
    silence(cluster.servers)


@pytest.fixture(scope="module")
def _lasting():
    """Three masters without replicas, which take a long time to call a silent one failed."""
    with Cluster(KIND, replicas=0, node_timeout_ms=60_000) as cluster:
        yield cluster


@pytest.fixture
def lasting(_lasting):
    silence(_lasting.servers)
    yield _lasting
    _lasting.heal()
    for server in _lasting.servers:
        look_after(server)


def masters(group):
    """Return the masters and the replicas."""
    keep = group.masters() if isinstance(group, Cluster) else [group.primary()]
    return keep, [server for server in group.servers if server not in keep]


def end_each(group, listener, token):
    """Let a consumer of every queue expire, and wait for all reports."""
    for name in NAMES:
        expire(group.server_of(name), name, token)
    listener.until_expired(*((name, token) for name in NAMES))


def test_every_master_is_configured_and_has_one_subscription(quiet, listen):
    """A master publishes its own keys only. Replicas publish nothing, and stay unchanged."""
    listener = listen(quiet.url, NAMES)
    keep, others = masters(quiet)

    until_subscribed(keep)
    assert [subscribed(server) for server in others] == [0] * len(others)
    assert all(set(letters(server)) == WANTED for server in keep)
    assert all(letters(server) == "" for server in others)
    assert len({quiet.server_of(name).port for name in NAMES}) == len(keep)
    end_each(quiet, listener, "t")
    assert sorted(listener.expired) == sorted((name, "t") for name in NAMES)
    assert sorted(listener.kinds()) == ["events_subscribed"] * len(keep) + ["setting_changed"] * len(keep)
    listener.close()
    until_subscribed(quiet.servers, 0)
    assert all(set(letters(server)) == WANTED for server in keep)


@pytest.mark.acceptance("A1-24")
@pytest.mark.parametrize("how", ["gracefully", "by its death"])
def test_a_promoted_master_is_configured_and_gets_a_subscription(quiet, listen, how):
    """The listener notices by itself: the new master gets its setting and one subscription, and its events arrive."""
    listener = listen(quiet.url, NAMES)
    before = quiet.server_of(NAMES[0])

    if how == "gracefully":
        successor = quiet.failover(before)
    else:
        before.kill()
        successor = quiet.wait_replaced(before)

    until_subscribed([successor])
    eventually(lambda: set(letters(successor)) == WANTED, WAIT_S)
    quiet.heal()
    keep, others = masters(quiet)
    assert successor in keep
    until_subscribed(keep)
    until_subscribed(others, 0)
    end_each(quiet, listener, "after")


@pytest.mark.acceptance("A1-23")
def test_changes_of_the_cluster_leave_one_subscription_for_each_master(quiet_cluster, listen):
    """A failover, broken connections, a moving slot: never two subscriptions, and none after the close."""
    cluster, listener = quiet_cluster, listen(quiet_cluster.url, NAMES)

    def until_one_each():
        keep, others = masters(cluster)
        until_subscribed(keep)
        until_subscribed(others, 0)

    until_one_each()
    cluster.failover(cluster.masters()[0])
    until_one_each()
    for server in cluster.masters():
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
    until_one_each()
    for _ in range(3):
        listener.engine.topology.agreed_nodes()
        listener.expiries.reconnect()
    first, second = cluster.masters()[:2]
    slot = next(slot for slot in range(16384) if cluster.server_of_slot(slot) is first)
    cluster.move_slot(slot, second)
    end_each(cluster, listener, "in the end")
    until_one_each()

    listener.expiries.close()

    until_subscribed(cluster.servers, 0)
    cluster.wait_stable()
    cluster.move_slot(slot, first)
    cluster.wait_stable()


def silent_third(cluster):
    """Freeze a master and its replica until the others find the cluster down; return the others."""
    master = cluster.masters()[0]
    shard = [master, *cluster.replicas_of(master)]
    for server in shard:
        server.freeze()
    rest = [server for server in cluster.servers if server not in shard]
    for server in rest:
        eventually(lambda server=server: b"cluster_state:fail" in server.command("CLUSTER", "INFO"), WAIT_S)
    return rest


@pytest.mark.acceptance("A1-26")
def test_a_cluster_whose_servers_disagree_stays_unchanged(quiet_cluster, listen):
    """The masters are not certain then: the start fails, no setting was changed, and there is no subscription."""
    rest = silent_third(quiet_cluster)

    with pytest.raises(Unavailable) as trouble:
        listen(quiet_cluster.url)

    assert (trouble.value.reason, trouble.value.retryable) == ("moving", True)
    assert [letters(server) for server in rest] == [""] * len(rest)
    assert [subscribed(server) for server in rest] == [0] * len(rest)


@pytest.mark.acceptance("A1-26")
def test_while_servers_disagree_all_subscriptions_stay(quiet_cluster, listen):
    """Present subscriptions stay; a broken one waits; everything comes back by itself."""
    listener = listen(quiet_cluster.url, NAMES)
    rest = silent_third(quiet_cluster)
    keep = [server for server in quiet_cluster.masters() if server in rest]
    cut, other = keep
    cut.command("CLIENT", "KILL", "TYPE", "pubsub")
    eventually(lambda: any("down" in detail for detail in listener.details("events_missing")), WAIT_S, "word of it")

    assert (subscribed(cut), subscribed(other)) == (0, 1)
    assert [letters(server) for server in rest if server not in keep] == [""] * (len(rest) - 2)

    quiet_cluster.heal()
    keep, others = masters(quiet_cluster)
    until_subscribed(keep)
    until_subscribed(others, 0)
    end_each(quiet_cluster, listener, "after")


def test_a_listener_that_starts_while_servers_disagree_waits_for_them(quiet_cluster, listen):
    """The listen mode changes nothing, so it may start before the masters are certain."""
    for server in quiet_cluster.servers:
        server.command("CONFIG", "SET", SETTING, "Ex")
    silent_third(quiet_cluster)
    listener = listen(quiet_cluster.url, NAMES, configure=False)
    assert listener.kinds() == ["events_missing"]

    quiet_cluster.heal()

    until_subscribed(quiet_cluster.masters())
    end_each(quiet_cluster, listener, "t")


def test_a_master_that_hangs_is_reported_and_configured_later(lasting, listen):
    """The others are configured at once; the silent one when it answers again."""
    silent, *rest = lasting.masters()
    silent.freeze()

    listener = listen(lasting.url, NAMES)

    assert [str(silent.port) in detail for detail in listener.details("events_missing")] == [True]
    until_subscribed(rest)
    assert all(set(letters(server)) == WANTED for server in rest)
    silent.thaw()
    until_subscribed(lasting.servers)
    end_each(lasting, listener, "t")
    assert set(letters(silent)) == WANTED


def test_a_cluster_without_any_answer_is_an_error_that_says_so(lasting, listen):
    """There is no server to configure or to subscribe to."""
    for server in lasting.servers:
        server.freeze()

    with pytest.raises(Unavailable) as trouble:
        listen(lasting.url)

    assert trouble.value.reason == "unreachable"


@pytest.mark.acceptance("A1-16")
def test_one_master_that_forbids_the_change_keeps_all_unchanged(lasting, listen):
    """Each server has its own rights. A partial change would be worse than none."""
    rights = ("+subscribe", "+info", "+client|setname", "+cluster|slots", "+cluster|info", "allchannels", "+config|get")
    for server in lasting.servers:
        server.command("ACL", "SETUSER", "app", "reset", "on", ">pw", *rights, "+config|set")
    lasting.servers[-1].command("ACL", "SETUSER", "app", "-config|set")

    with pytest.raises(Unavailable) as trouble:
        listen(lasting.url.replace("://", "://app:pw@"))

    assert trouble.value.reason == "no permission"
    assert [letters(server) for server in lasting.servers] == ["", "", ""]
    assert [subscribed(server) for server in lasting.servers] == [0, 0, 0]
    lasting.servers[-1].command("ACL", "SETUSER", "app", "+config|set")
    listen(lasting.url.replace("://", "://app:pw@"))


@pytest.mark.parametrize("configure", [False, True])
def test_a_cluster_url_for_a_single_server_is_refused(one_server, configure, listen):
    """The server says that it is no cluster; nothing was changed there."""
    one_server.command("CONFIG", "SET", SETTING, "")

    with pytest.raises(Unavailable) as trouble:
        listen(f"redis+cluster://127.0.0.1:{one_server.port}", configure=configure)

    assert (trouble.value.reason, trouble.value.retryable) == ("other topology", False)
    assert "cluster support disabled" in str(trouble.value)
    assert letters(one_server) == ""


@pytest.mark.parametrize("configure", [False, True])
def test_the_url_of_one_cluster_server_is_refused(lasting, configure, listen):
    """It would publish a third of the keys, and the missing events would go unnoticed."""
    server = lasting.servers[0]

    with pytest.raises(Unavailable) as trouble:
        listen(server.url, configure=configure)

    assert trouble.value.reason == "other topology"
    assert "redis+cluster://" in str(trouble.value)
    assert letters(server) == ""


def test_closing_does_not_wait_for_a_master_that_hangs(lasting, listen):
    """Two of three answer while the listener waits for the third. No thread and no subscription is left."""
    listener = listen(lasting.url, NAMES)
    silent, *rest = lasting.masters()
    silent.freeze()
    for subscription in tuple(listener.expiries._subscriptions.values()):
        if str(silent.port) in subscription.node.url:
            subscription.until_s = 0.0  # otherwise the ping would come in some seconds
    listener.expiries.reconnect()
    eventually(lambda: "events_missing" in listener.kinds(), WAIT_S, "a report of its silence")

    listener.expiries.close()

    until_subscribed(rest, 0)
    silent.thaw()
    until_subscribed([silent], 0)

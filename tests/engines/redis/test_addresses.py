"""URLs and client objects for several servers, namespaces, and data of other layouts."""

import asyncio

import pytest
import redis
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.sentinel import Sentinel

import holdfast
from holdfast import DomainMismatch, InvalidConfig, Unavailable, config
from holdfast.engines.redis.address import topology_of
from holdfast.engines.redis.cluster import Cluster
from holdfast.engines.redis.sentinel import SentinelService

SECRET = "s3cr3t-word"
SCHEMES = ["redis", "rediss", "valkey", "valkeys"]


def topology(url):
    return topology_of(config.settings(url))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_hosts_of_a_cluster_url_are_parsed(scheme):
    """Commas separate the hosts, each with its port or the default one; the user is the same for all."""
    read = topology(f"{scheme}+cluster://user:p%40ss@h1,h2:7001,[::1]:7002?socket_timeout=0.7")

    assert isinstance(read, Cluster)
    assert [node.place for node in read.nodes()] == [("h1", 6379), ("h2", 7001), ("::1", 7002)]
    assert read.wire_s == 0.7
    for node in read.nodes():
        assert (node._kwargs["username"], node._kwargs["password"]) == ("user", "p@ss")
        assert node._tls == (scheme in ("rediss", "valkeys"))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_hosts_and_the_service_of_a_sentinel_url_are_parsed(scheme):
    """The user and the database belong to the servers; sentinels have a user of their own."""
    read = topology(
        f"{scheme}+sentinel://user:pw@h1,h2:7001/my%20service?db=3&sentinel_username=watcher&sentinel_password=wp"
    )

    assert isinstance(read, SentinelService)
    primary = read.only
    assert [sentinel.place for sentinel in primary._sentinels] == [("h1", 26379), ("h2", 7001)]
    assert primary._service == "my service"
    assert primary._server._kwargs["db"] == 3
    assert (primary._server._kwargs["username"], primary._server._kwargs["password"]) == ("user", "pw")
    for sentinel in primary._sentinels:
        assert (sentinel._kwargs["username"], sentinel._kwargs["password"]) == ("watcher", "wp")
        assert "db" not in sentinel._kwargs
        assert sentinel._tls == (scheme in ("rediss", "valkeys"))


def test_a_password_option_is_for_the_servers_alone():
    """As a password before the hosts: sentinels are other machines and do not need it."""
    primary = topology(f"redis+sentinel://h1,h2/main?username=user&password={SECRET}").only

    assert (primary._server._kwargs["username"], primary._server._kwargs["password"]) == ("user", SECRET)
    for sentinel in primary._sentinels:
        assert not {"username", "password"} & sentinel._kwargs.keys()


@pytest.mark.parametrize("where", ["redis://h1", "redis+cluster://h1", "redis+sentinel://h1/main"])
def test_an_option_is_decoded_once(where):
    """A password may look encoded; some versions of redis-py decode it twice."""
    read = topology(f"{where}?username=a%2541&password=100%2525")
    node = read.only or read.nodes()[0]
    kwargs = getattr(node, "_server", node)._kwargs

    assert (kwargs["username"], kwargs["password"]) == ("a%41", "100%25")


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://",
        "redis+cluster://h1,",
        "redis+cluster://h1,,h2",
        "redis+cluster://h1:port",
        "redis+cluster://h1:0",
        "redis+cluster://h1:70000",
        "redis+cluster://h1/1",
        "redis+cluster://h1?db=1",
        "redis+cluster://h1?colour=green",
        "redis+cluster://h1?sentinel_password=x",
        "redis+cluster://h1?namespace=",
        "redis+cluster://h1?namespace=a:b",
        "redis+cluster://h1?namespace={a}",
        "redis://h1?namespace=" + "n" * 65,
        "redis+sentinel://h1,h2",
        "redis+sentinel://h1,h2/",
        "redis+sentinel://h1,h2/a/b",
        "redis+sentinel:///main",
        "redis+sentinel://h1/main?db=one",
        "redis+sentinel://h1/main?colour=green",
        "redis+ring://h1,h2",
        "redis://h1/1?db=2",
        "redis://h1?host=h2",
        "redis://h1?path=/tmp/s.sock",
        "redis://h1?credential_provider=mine",
        "redis://h1?socket_keepalive_options=1",
        "redis://h1?ssl_ca_certs=/ca.crt",
        "redis+sentinel://h1/main?ssl_ca_certs=/ca.crt",
        "rediss://h1?ssl_colour=green",
        "rediss+cluster://h1?ssl_cert_reqs=perhaps",
        "unix+cluster:///tmp/s.sock",
    ],
)
def test_an_invalid_url_is_refused_before_the_first_connection(url):
    """holdfast guesses nothing: neither a database that a cluster does not have, nor a missing host."""
    with pytest.raises(InvalidConfig):
        holdfast.connect(url)


@pytest.mark.parametrize(
    "url",
    [
        f"redis+cluster://{SECRET}:{SECRET}@127.0.0.1:1,127.0.0.1:2",
        f"redis+cluster://:{SECRET}/{SECRET}@127.0.0.1:1",
        f"redis+cluster://:{SECRET}@127.0.0.1:1?password={SECRET}",
        f"redis+sentinel://:{SECRET}@127.0.0.1:1,127.0.0.1:2/main?sentinel_password={SECRET}",
        f"redis+sentinel://:{SECRET}/{SECRET}@127.0.0.1:1/main",
        f"redis+sentinel://127.0.0.1:1/main?sentinel_pasword={SECRET}",
    ],
)
def test_no_url_of_several_hosts_shows_its_password(url, caplog):
    """Neither a valid nor an invalid one."""
    said = []
    try:
        with holdfast.connect(url) as client:
            said += [repr(client), client.url]
            client.lock("x").acquire(timeout=0)
    except (InvalidConfig, Unavailable) as error:
        said += [str(error), repr(error), repr(error.args)]

    assert said != []
    assert SECRET not in "\n".join([*said, caplog.text])


def test_unreachable_hosts_are_an_error_at_once(face, loop):
    """As with one server: every host has been tried, so waiting would not help."""
    from redis_faces import Place

    for url in ("redis+cluster://127.0.0.1:1,127.0.0.1:2", "redis+sentinel://127.0.0.1:1,127.0.0.1:2/main"):
        place = Place(None, face, loop)
        with pytest.raises(Unavailable) as trouble:
            place.connect(url).lock("x").acquire(timeout=5)

        assert trouble.value.reason == "unreachable"
        place.close()


def test_a_service_that_no_sentinel_knows_is_an_error(sentinels):
    """A misspelt service does not get better by waiting."""
    with (
        holdfast.connect(sentinels.url.replace("/main", "/mian")) as client,
        pytest.raises(Unavailable, match="it has no service 'mian'") as trouble,
    ):
        client.lock("x").acquire(timeout=5)
    assert (trouble.value.reason, trouble.value.retryable) == ("failed", False)


def test_a_password_that_no_sentinel_accepts_is_an_error(sentinels):
    """As with a server: an operator has to act, and retries do not help."""
    with (
        holdfast.connect(f"{sentinels.url}?sentinel_username=nobody&sentinel_password={SECRET}") as client,
        pytest.raises(Unavailable, match=r"WRONGPASS|invalid username-password") as trouble,
    ):
        client.lock("x").acquire(timeout=5)
    assert (trouble.value.reason, trouble.value.retryable) == ("no permission", False)
    assert SECRET not in str(trouble.value)


def test_the_error_of_one_cluster_server_names_the_right_url(cluster):
    """`redis://` to a cluster serves a third of the names: the others are refused, and the error names the scheme."""
    url = f"redis://127.0.0.1:{cluster.masters()[0].port}"
    with holdfast.connect(url) as client:
        refused = []
        for number in range(12):
            try:
                client.lock(f"x{number}").acquire(timeout=0).release()
            except Unavailable as error:
                refused.append(error)

    assert 0 < len(refused) < 12
    assert {error.reason for error in refused} == {"other topology"}
    assert all("redis+cluster://" in str(error) for error in refused)


@pytest.mark.parametrize("library", ["blocking", "asyncio"])
def test_a_client_of_the_primary_gives_its_settings(sentinels, face, loop, library):
    """The client that `master_for` returned, of either library, for either face; it is neither used nor closed."""
    from redis_faces import Place

    kind = Sentinel if library == "blocking" else AsyncSentinel
    theirs = kind([("127.0.0.1", sentinel.port) for sentinel in sentinels.sentinels]).master_for("main", db=2)
    place = Place(sentinels, face, loop)
    place.connect(theirs).lock("x").acquire(timeout=5).release()
    keyspace = sentinels.primary().command("INFO", "keyspace")
    place.close()
    assert answers(theirs)

    assert b"db2:keys=2" in keyspace  # the record and the marker


@pytest.mark.parametrize("library", ["blocking", "asyncio"])
def test_a_client_of_a_cluster_gives_its_settings(cluster, face, loop, library):
    """A `RedisCluster` works too."""
    from redis_faces import Place

    kind = redis.RedisCluster if library == "blocking" else redis.asyncio.RedisCluster
    theirs = kind(host="127.0.0.1", port=cluster.servers[1].port)
    place = Place(cluster, face, loop)
    client = place.connect(theirs)
    for number in range(6):
        client.lock(f"x{number}").acquire(timeout=5).release()
    place.close()
    assert answers(theirs)

    assert all(server.command("DBSIZE") > 0 for server in cluster.masters())


def answers(client):
    """Check that the user's client still works after ours was closed; then close it and its sentinels."""
    manager = getattr(getattr(client, "connection_pool", None), "sentinel_manager", None)
    everything = [client, *(manager.sentinels if manager is not None else ())]
    if isinstance(client, redis.Redis | redis.RedisCluster):
        answer = client.ping()
        for each in everything:
            each.close()
        return answer

    async def asked():
        answer = await client.ping()
        for each in everything:
            await each.aclose()
        return answer

    return asyncio.run(asked())


def close(client):
    if isinstance(client, redis.Redis | redis.RedisCluster):
        client.close()
    else:
        asyncio.run(client.aclose())


@pytest.mark.filterwarnings("ignore:.*read_from_replicas:DeprecationWarning")  # the word that all versions know
@pytest.mark.parametrize("library", [redis.RedisCluster, redis.asyncio.RedisCluster])
def test_a_client_of_a_cluster_that_reads_from_replicas_gives_its_settings(cluster, library):
    """holdfast connects to masters only."""
    theirs = library(host="127.0.0.1", port=cluster.servers[0].port, read_from_replicas=True)
    with holdfast.connect(theirs) as client, client.lock("x", timeout=5) as lease:
        assert client.show("x").fence == lease.fence
    close(theirs)


def test_a_cluster_client_with_its_own_connect_function_is_refused(cluster):
    """holdfast would not run that function."""
    theirs = redis.RedisCluster(
        host="127.0.0.1", port=cluster.servers[0].port, redis_connect_func=lambda link: link.on_connect()
    )
    with pytest.raises(InvalidConfig, match="redis_connect_func"):
        holdfast.connect(theirs)
    theirs.close()


def test_a_client_whose_addresses_are_mapped_is_refused(cluster):
    """holdfast would connect to addresses that the client never uses."""
    theirs = redis.RedisCluster(host="127.0.0.1", port=cluster.servers[0].port, address_remap=lambda place: place)
    with pytest.raises(InvalidConfig, match="address_remap"):
        holdfast.connect(theirs)
    theirs.close()


def tenants(place):
    """Hold the same name in three namespaces, and return the keys."""
    url = place.server.url
    plain, one, other = (place.connect(url + tail) for tail in ("", "?namespace=one", "?namespace=two.2"))
    held = [client.lock("x", ttl=20).acquire(timeout=0) for client in (plain, one, other)]
    assert place.connect(url + "?namespace=one").lock("x").try_acquire() is None
    servers = getattr(place.server, "servers", [place.server])
    keys = {key for server in servers for key in server.command("KEYS", "*")}
    for lease in held:
        lease.release()
    return keys


# Each namespace has the marker that clients of layout 1 read.
TENANT_KEYS = {
    *(b"hf2:{x}", b"hf2:one:{x}", b"hf2:two.2:{x}"),
    *(b"hf1:layout", b"hf1:one:layout", b"hf1:two.2:layout"),
}


def test_namespaces_share_no_lease(slow):
    """The same name in two namespaces is two leases; a user's rights may be limited to one of them."""
    assert tenants(slow) == TENANT_KEYS


def test_namespaces_share_no_lease_on_groups_of_servers(grouped):
    """Namespaces work alike behind sentinels and in clusters."""
    assert tenants(grouped) == TENANT_KEYS


def test_a_namespace_may_be_an_argument(slow):
    """As in the URL, and also for a client object, which has no URL; the two may not differ."""
    url = slow.server.url
    theirs = redis.Redis(port=slow.server.port)
    held = slow.connect(url, namespace="one").lock("x", ttl=20).acquire(timeout=0)
    assert slow.connect(url + "?namespace=one").lock("x").try_acquire() is None
    assert slow.connect(url + "?namespace=one", namespace="one").lock("x").try_acquire() is None
    assert slow.connect(theirs, namespace="one").lock("x").try_acquire() is None
    other = slow.connect(theirs, namespace="two").lock("x", ttl=20).acquire(timeout=0)
    theirs.close()

    for wrong in ("two", "", "a:b", 7):
        with pytest.raises(InvalidConfig):
            slow.connect(url + "?namespace=one", namespace=wrong)
    with pytest.raises(InvalidConfig):
        slow.connect(url, namespace="")
    with pytest.raises(InvalidConfig):
        slow.connect("memory://", namespace="one")
    for lease in (held, other):
        lease.release()


def refused_directory(directory, one, other):
    """Mark the directory with one client, let a client of another domain use it, and return the error."""
    with holdfast.connect(one) as client, holdfast.connect(other) as stranger:
        assert client.domain(directory).id == client.domain(directory).id
        with pytest.raises(DomainMismatch) as refused:
            stranger.domain(directory)
    guarded, configured = refused.value.guarded_by, refused.value.configured
    assert guarded != configured
    assert all(url.startswith("redis") and " " not in url for url in (guarded, configured))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda port: redis.Redis(port=port), lambda _: redis.Redis(port=2)),
        (lambda port: redis.Redis(port=port), lambda port: redis.asyncio.Redis(port=port, db=2)),
        (lambda port: f"redis://localhost:{port}", lambda port: f"redis://localhost:{port}?db=2"),
        (lambda port: f"redis://localhost:{port}", lambda port: f"redis://localhost:{port}?namespace=tenant"),
    ],
    ids=["servers", "databases of clients", "databases", "tenants"],
)
def test_a_directory_that_is_guarded_elsewhere_is_refused(server, one, other, tmp_path):
    """Another server or database is another lock domain: clients of two domains must not share a directory."""
    refused_directory(tmp_path, one(server.port), other(server.port))


@pytest.mark.parametrize("of_clients", [False, True], ids=["URLs", "clients"])
def test_a_directory_that_another_database_of_a_service_guards_is_refused(sentinels, of_clients, tmp_path):
    """The servers of a service change, so its sentinels and its database are the lock domain."""
    hosts, service = sentinels.url.removeprefix("redis+sentinel://").split("/")
    hosts = [(host, int(port)) for host, port in (each.split(":") for each in hosts.split(","))]
    one, other = sentinels.url, f"{sentinels.url}?db=2"
    if of_clients:
        one, other = Sentinel(hosts).master_for(service), Sentinel(hosts).master_for(service, db=2)
    refused_directory(tmp_path, one, other)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("redis+cluster://127.0.0.1:{}", "it is no cluster: connect to redis://"),
        ("redis+sentinel://127.0.0.1:{}/main", "it is no sentinel: connect to redis://"),
    ],
)
def test_a_server_of_another_kind_is_refused_with_a_hint(server, url, hint):
    """The server's own error does not help a user with a wrong URL."""
    with holdfast.connect(url.format(server.port)) as client, pytest.raises(Unavailable) as refusal:
        client.lock("x", timeout=0).acquire()
    assert (refusal.value.reason, refusal.value.retryable) == ("other topology", False)
    assert hint in str(refusal.value)


def refused_layout(place, server):
    """Return the error of a client that connects to a server with the marker of a later layout."""
    server.command("SET", "hf2:layout", "3")
    with pytest.raises(Unavailable) as trouble:
        place.connect().lock("x").acquire(timeout=5)
    server.command("SET", "hf2:layout", "2")
    place.connect().lock("x").acquire(timeout=5).release()
    server.command("DEL", "hf2:layout")
    return trouble.value


def test_the_marker_of_a_later_layout_is_refused(slow):
    """Two versions with two layouts would not exclude each other: the older one refuses the server."""
    trouble = refused_layout(slow, slow.server)

    assert (trouble.reason, trouble.retryable) == ("other layout", False)
    assert "data of layout 3; this version of holdfast uses layout 2." in str(trouble)


def test_a_marker_that_could_not_be_read_is_read_again(new_server, place_on):
    """A server that has lost its primary answers nothing, so its layout is still unknown."""
    server = new_server(arguments=("--replica-serve-stale-data", "no"))
    server.command("SET", "hf2:layout", "3")
    server.command("REPLICAOF", "127.0.0.1", "1")
    client = place_on(server).connect()
    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=0)
    assert trouble.value.reason == "read-only"

    server.command("REPLICAOF", "NO", "ONE")

    with pytest.raises(Unavailable) as trouble:
        client.lock("x").acquire(timeout=5)
    assert trouble.value.reason == "other layout"
    server.command("DEL", "hf2:layout")
    client.lock("x").acquire(timeout=5).release()


def test_the_marker_of_a_later_layout_is_refused_on_groups_of_servers(grouped):
    """In a cluster one of the servers has the marker."""
    trouble = refused_layout(grouped, grouped.server.server_of("hf2:layout"))

    assert trouble.reason == "other layout"

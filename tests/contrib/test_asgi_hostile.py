"""Web applications under hostile or unlucky requests: bypassed limits, credentials, odd text, large and deep bodies."""

import asyncio
import logging
import secrets
import time

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect as open_websocket

from holdfast import aio
from holdfast.contrib.asgi import Connection, RateLimit, Readiness, Webhook, by_address, by_header, content, recipes
from holdfast.contrib.prometheus import PrometheusObserver
from holdfast.errors import InvalidName, Unavailable
from holdfast.testing.servers import Server, available
from tests.support.web import request, serving, status_of


async def plain(scope, receive, send):
    """Answer every request with 200, and every WebSocket with the text "hello"."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    elif scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "text": "hello"})
        await send({"type": "websocket.close", "code": 1000})
    else:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"handled"})


def scope_of(path="/", headers=(), kind="http", address="10.0.0.1", **more):
    """Return the scope of a request."""
    fields = {"type": kind, "method": "POST", "path": path, "query_string": b"", "headers": list(headers)}
    return {**fields, "client": (address, 1), **more}


async def called(app, scope, *pieces):
    """Send one request to the application; return the status and the headers, or the code of a WebSocket."""
    messages = [{"type": "http.request", "body": piece, "more_body": True} for piece in pieces]
    messages.append({"type": "http.request", "body": b"", "more_body": False})
    if scope["type"] == "websocket":
        messages = [{"type": "websocket.connect"}]
    waiting, sent = iter(messages), []

    async def receive():
        return next(waiting)

    async def send(message):
        sent.append(message)

    await app(scope, receive, send)
    if scope["type"] == "websocket":
        return sent[-1]["code"], sent
    return sent[0]["status"], dict(sent[0]["headers"])


def with_connection(url, work, **options):
    """Run the work with a connection, and close it."""

    async def run():
        connection = Connection(url, **options)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(run())


# Webhooks: what counts as the same event.


@pytest.mark.finding("T4")
def test_webhooks_do_not_swallow_the_events_of_another_path_query_or_application(tmp_path):
    """The same body may mean different things there; only a real repetition is a duplicate."""
    url = f"sqlite://{tmp_path}/x.db"

    def application(name):
        connection = Connection(url)
        app = Webhook(plain, connection, content, path="/b", name=name)
        return Webhook(app, connection, content, path="/a", name=name)

    with serving(application("shop")) as shop, serving(application("bank")) as bank, httpx.Client() as web:

        def handled(port, path):
            return web.post(f"http://127.0.0.1:{port}{path}", content=b'{"id": 1}').text == "handled"

        found = [handled(port, path) for port in (shop, bank) for path in ("/a", "/b", "/a?x=1", "/a?x=2", "/a/")]
        again = [handled(port, path) for port in (shop, bank) for path in ("/a", "/b", "/a?x=1", "/a?x=2")]

    assert found == [True, True, True, True, False] * 2  # /a/ is /a
    assert again == [False] * 8


DIFFERENT = [
    ('{"a":1,"a":2}', '{"a":2}'),
    ('{"a":1,"a":2}', '{"a":2,"a":1}'),
    ("1.0", "1.00"),
    ("1", "1.0"),
    ("0", "-0"),
    ("0.1", "0.10000000000000000001"),
    ("12345678901234567890.0", "12345678901234567891.0"),
    ("1e400", "1e500"),
    ("1e5", "1E5"),
    ("1", '"1"'),
    ("1", '[0.5,"1"]'),
    ("{}", "[0.25]"),
    ('{"a":"b"}', '[0.25,["a","b"]]'),
    ("NaN", '"NaN"'),
    ("null", '"null"'),
    ('"\\ud800"', '"\\udfff"'),
    ('{"a":[1,2]}', '{"a":[2,1]}'),
]
SAME = [('{"a":1,"b":[{"c":0.50,"d":null}]}', '{ "b" : [{"d":null,"c":0.50}], "a":1 }'), ('"\\u00e9"', '"é"')]


@pytest.mark.finding("T4")
@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_json_that_differs_in_anything_but_the_order_of_keys_is_another_event(one, other):
    """Duplicate keys and every digit count."""
    assert recipes.content({}, one.encode()) != recipes.content({}, other.encode())


@pytest.mark.parametrize(("one", "other"), SAME)
def test_json_with_another_order_of_keys_is_the_same_event(one, other):
    """Some senders write the keys of a repetition in another order."""
    assert recipes.content({}, one.encode()) == recipes.content({}, other.encode())


# Webhooks: bodies.


@pytest.mark.finding("S7")
def test_deep_json_is_refused_and_an_unpaired_surrogate_is_handled_once():
    """No body makes the middleware fail. Half an emoji, cut off by its sender, is no reason to lose an event."""
    deep = b'{"a":' * 50_000

    async def work(connection):
        found = {}
        for recipe in (recipes.content, recipes.github, recipes.slack, recipes.jira):
            app = Webhook(plain, connection, recipe, path="/hook", name=recipe.__name__)
            bodies = (deep, b"[" * 1_000_000, b'{"type": "\\ud800", "webhookEvent": "\xed\xa0\x80"}')
            found[recipe.__name__] = [(await called(app, scope_of("/hook"), body))[0] for body in bodies]
        return found

    assert set(map(tuple, with_connection("memory://deep", work).values())) == {(400, 400, 200)}


@pytest.mark.finding("S7")
def test_a_body_in_many_pieces_costs_time_by_its_size_only():
    """A client chooses the pieces; 16,000 of them cost 2 s of CPU time when each one counted all pieces before."""

    async def work(connection):
        app = Webhook(plain, connection, content, path="/hook", name="pieces")
        await called(app, scope_of("/hook"), b"warm up")
        began = time.process_time()
        status, _ = await called(app, scope_of("/hook"), *[b"xy"] * 16_000)
        return status, time.process_time() - began

    status, seconds = with_connection("memory://pieces", work)

    assert status == 200
    assert seconds < 0.5


@pytest.mark.finding("S7")
def test_a_large_body_is_refused_as_soon_as_its_size_is_known():
    """The announced size is enough; otherwise the pieces are counted."""

    async def work(connection):
        app = Webhook(plain, connection, content, path="/hook", name="large", largest=1000)
        announced = await called(app, scope_of("/hook", [(b"content-length", b"1001")]))
        counted = await called(app, scope_of("/hook"), *[b"x" * 100] * 11)
        fitting = await called(app, scope_of("/hook"), *[b"x" * 100] * 10)
        return announced[0], counted[0], fitting[0]

    assert with_connection("memory://bodies", work) == (413, 413, 200)


@pytest.mark.finding("S7")
def test_an_error_of_the_application_stays_its_own():
    """Only the errors of the middleware become 503: an application may use Holdfast too."""

    async def failing(scope, receive, send):
        raise Unavailable("memory://", "unreachable")

    async def work(connection):
        app = Webhook(failing, connection, content, path="/hook", name="own")
        with pytest.raises(Unavailable):
            await called(app, scope_of("/hook"), b"event")
        retried = Webhook(plain, connection, content, path="/hook", name="own")
        return (await called(retried, scope_of("/hook"), b"event"))[0]

    assert with_connection("memory://own", work) == 200


# Rate limits: keys.


@pytest.mark.finding("S3", "S12")
def test_a_header_that_any_client_can_send_does_not_bypass_the_limit():
    """Only a verified identity has a count of its own; any other value counts for the address."""
    valid = {"Bearer ann": "ann", "Bearer bob": "bob"}

    async def verify(value):
        return valid.get(value)

    async def work(connection):
        app = RateLimit(plain, connection, "3/hour", name="api", key=by_header("Authorization", verify))

        async def status(token):
            return (await called(app, scope_of(headers=[(b"authorization", token.encode())])))[0]

        random = [await status(f"Bearer {secrets.token_hex()}") for _ in range(6)]
        return random, [await status("Bearer ann") for _ in range(4)], await status("Bearer bob"), await status("")

    assert with_connection("memory://bypass", work) == ([200] * 3 + [429] * 3, [200] * 3 + [429], 200, 429)


@pytest.mark.finding("S3")
def test_a_client_with_many_ipv6_addresses_has_one_count():
    """A client owns its whole /64 network; an IPv4 address in IPv6 notation is the IPv4 address."""

    def key(address):
        return by_address(scope_of(address=address))

    assert {key(f"2001:db8:1:2:{n:x}::{n}") for n in range(9)} == {"2001:db8:1:2::/64"}
    assert key("2001:db8:1:3::1") != key("2001:db8:1:2::1")
    assert key("fe80::1%eth0") == "fe80::/64"
    assert key("::ffff:192.0.2.1") == key("192.0.2.1") == "192.0.2.1"
    assert key("not:an:address") == "not:an:address"
    assert by_address({"client": None}) == "unknown"


ODD_KEYS = ["", "x" * 5000, "a\nb", "\x1b[31m", "\x9b", "\u202eevil", "\ud800", "sha256:x", "slow:x", "Jürgen", "a/b%"]


@pytest.mark.finding("S3")
def test_any_key_of_a_request_is_counted_and_none_reaches_a_log_unescaped(caplog):
    """A proxy may pass on any text as the address; it must not end in an error, nor in another client's count."""
    names = []

    async def work(connection):
        app = RateLimit(plain, connection, "1/hour", name="odd", key=lambda scope: scope["client"][0])
        return [(await called(app, scope_of(address=key)))[0] for _ in range(2) for key in ODD_KEYS]

    with caplog.at_level(logging.DEBUG, "holdfast"):
        found = with_connection("memory://odd", work, observer=lambda event: names.append(event.name))

    assert found == [200] * len(ODD_KEYS) + [429] * len(ODD_KEYS)
    assert "odd/Jürgen" in names
    assert all(name.isprintable() and len(name) < 512 for name in names)
    assert all(line.isprintable() for record in caplog.records for line in [record.getMessage()])


@pytest.mark.finding("L6")
def test_every_middleware_has_a_name_and_counts_for_itself():
    """Two limits that shared a name by default counted each other's requests; `slow` must not count for another."""
    for middleware, more in ((RateLimit, {"rate": "1/hour"}), (Webhook, {"recipe": content, "path": "/"})):
        with pytest.raises(TypeError, match="name"):
            middleware(plain, Connection("memory://"), **more)
        for name in ("", "x" * 201, "/" * 67, "a\0b"):
            with pytest.raises(InvalidName):
                middleware(plain, Connection("memory://"), name=name, **more)
        middleware(plain, Connection("memory://"), name="x" * 200, **more)

    async def work(connection):
        apps = [RateLimit(plain, connection, "3/hour", name=name) for name in ("one", "two", "one slow")]
        apps[0] = RateLimit(plain, connection, "3/hour", name="one", slow="3/hour", delay=0)
        return [[(await called(app, scope_of()))[0] for _ in range(4)] for app in apps]

    assert with_connection("memory://own names", work) == [[200] * 3 + [429]] * 3


# Rate limits: answers.


@pytest.mark.finding("L12")
def test_a_refused_websocket_is_closed_with_1013_over_a_real_server():
    """A browser sees the close code only if the server has accepted: a refused handshake is a 403 without a reason."""
    connection = Connection("memory://sockets")
    app = RateLimit(plain, connection, "1/hour", name="sockets")

    with serving(app) as port:
        with open_websocket(f"ws://127.0.0.1:{port}/") as socket:
            assert socket.recv() == "hello"
        for offered in (None, ["chat.v2", "chat.v1"]):
            with (
                open_websocket(f"ws://127.0.0.1:{port}/", subprotocols=offered) as socket,
                pytest.raises(ConnectionClosed) as closed,
            ):
                socket.recv()
            assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1013, "too many requests")
            assert socket.subprotocol == (offered and offered[0])


@pytest.mark.finding("L12")
def test_in_an_outage_the_policy_deny_is_503_and_allow_has_no_counts():
    """429 would blame the client. Without a count, there is nothing to report in the headers."""
    with Server(next(iter(available()))) as server:
        connections = [Connection(server.url) for _ in range(4)]
        deny, allow, local = (
            RateLimit(plain, each, "9/hour", name="outage", on_unavailable=policy)
            for each, policy in zip(connections, ("deny", "allow", "local"), strict=False)
        )

        async def run():
            before = [(await called(app, scope_of()))[0] for app in (deny, allow, local)]
            server.kill()
            during = [await called(app, scope_of()) for app in (deny, allow, local)]
            socket = await called(deny, scope_of(kind="websocket"))
            probe = await called(Readiness(connections[3]), scope_of(kind="websocket"))
            for each in connections:
                await each.close()
            return before, during, socket, probe

        before, during, socket, probe = asyncio.run(run())

    assert before == [200] * 3
    assert [status for status, _ in during] == [503, 200, 200]
    assert during[0][1][b"retry-after"] == b"1"
    assert [b"ratelimit" in headers for _, headers in during] == [False, False, True]
    assert (socket[0], socket[1][-1]["reason"]) == (1013, "the rate limit is unavailable")
    assert (probe[0], probe[1][-1]["reason"]) == (1013, "not ready")


@pytest.mark.finding("L12")
def test_a_connection_that_cannot_be_opened_is_503_unless_the_policy_allows(tmp_path):
    """Without a client there is no local count, so only `allow` lets requests pass."""

    async def work(connection):
        found = {}
        for policy in ("local", "deny", "allow"):
            app = RateLimit(plain, connection, "9/hour", name="closed", on_unavailable=policy)
            found[policy] = (await called(app, scope_of()))[0]
        app = Webhook(plain, connection, content, path="/hook", name="closed")
        found["webhook"] = (await called(app, scope_of("/hook"), b"event"))[0]
        return found

    (tmp_path / "file").write_text("")
    found = with_connection(f"sqlite://{tmp_path}/file/x.db", work)
    assert found == {"local": 503, "deny": 503, "allow": 200, "webhook": 503}


@pytest.mark.finding("L12")
@pytest.mark.parametrize("method", ["window", "gcra"])
def test_the_ratelimit_header_names_the_binding_policy_among_equal_counts(method):
    """The count alone does not tell `2/100ms` from `2/hour`; of equal windows, the one that takes longest binds."""

    async def work(connection):
        app = RateLimit(plain, connection, "2/100ms; 2/hour; 5/day", name="equal", method=method)
        found = []
        for _ in range(4):
            status, headers = await called(app, scope_of())
            found.append((status, headers[b"ratelimit"].decode().partition(";")[0]))
        policies = headers[b"ratelimit-policy"].decode()
        return policies, found

    policies, found = with_connection("memory://equal", work)

    assert policies == '"2-per-100ms";q=2;w=1, "2-per-3600s";q=2;w=3600, "5-per-86400s";q=5;w=86400'
    assert found == [(status, '"2-per-3600s"') for status in (200, 200, 429, 429)]


# Both.


@pytest.mark.finding("S11")
def test_callers_that_share_a_failed_attempt_share_the_next_client_too(tmp_path):
    """A caller that forgot the attempt of another one left its client open, without a reference."""
    blocking = tmp_path / "directory"
    blocking.write_text("")
    opened = []

    async def run():
        connection = Connection(f"sqlite://{blocking}/x.db")

        async def caller():
            try:
                return await connection()
            except Unavailable:
                if blocking.is_file():
                    blocking.unlink()
                    blocking.mkdir()
                return await connection()

        opened.extend(await asyncio.gather(*[caller() for _ in range(5)]))
        await connection.close()
        await connection.close()

    asyncio.run(run())

    assert len(set(map(id, opened))) == 1
    assert {client._client.state for client in opened} == {"closed"}


@pytest.mark.finding("S11")
def test_a_failed_connection_can_be_closed_and_a_cancelled_one_opens_again(tmp_path):
    """The failure of the start must not become a failure of the stop."""
    (tmp_path / "file").write_text("")

    async def run():
        failing = Connection(f"sqlite://{tmp_path}/file/x.db")
        with pytest.raises(Unavailable):
            await failing()
        await failing.close()

        connection = Connection("memory://again")
        first = asyncio.ensure_future(connection())
        await asyncio.sleep(0)
        connection._opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        client = await connection()
        await connection.close()
        return client

    assert isinstance(asyncio.run(run()), aio.Holdfast)


CREDENTIALS = [
    b"authorization",
    b"proxy-authorization",
    b"cookie",
    b"x-api-key",
    b"x-auth-token",
    b"x-csrf-token",
    b"x-gitlab-token",
    b"x-hub-signature-256",
    b"x-slack-signature",
    b"x-amz-security-token",
]


@pytest.mark.finding("S3", "S8")
@pytest.mark.parametrize("name", CREDENTIALS, ids=bytes.decode)
def test_a_credential_never_reaches_a_log_an_answer_a_metric_or_the_engine(name, tmp_path, caplog):
    """Valid, unknown, refused, too long and without the engine: only a digest of the identity is stored."""
    secret = secrets.token_hex(20)
    long = secret * 250
    events, registry = [], CollectorRegistry()
    metrics = PrometheusObserver(registry)

    def observer(event):
        events.append(event)
        metrics(event)

    def layers(connection):
        app = Webhook(plain, connection, recipes.gitlab, path="/hook", name="hooks")
        keys = [by_header(name.decode(), lambda value: value), by_header(name.decode(), lambda _value: None)]
        for number, key in enumerate(keys):
            app = RateLimit(app, connection, "3/hour", name=f"layer {number}", key=key, on_unavailable="deny")
        return app

    found = []
    with caplog.at_level(logging.DEBUG):
        for url in (f"sqlite://{tmp_path}/x.db", "redis://127.0.0.1:1"):
            connection = Connection(url, observer=observer)
            app = layers(connection)
            with serving(app, log_level="debug") as port, httpx.Client() as web:
                headers = {name: secret.encode()}
                answers = [web.post(f"http://127.0.0.1:{port}/hook", headers=headers, content=b"x") for _ in range(4)]
                answers.append(web.post(f"http://127.0.0.1:{port}/hook", headers={name: long.encode()}, content=b"x"))
                found += [answer.status_code for answer in answers]
                shown = [answer.text + repr(answer.headers) for answer in answers]
                assert not [text for text in shown if secret in text]

    assert found == [200, 200, 200, 429, 431, 503, 503, 503, 503, 431]
    assert secret not in caplog.text
    assert events
    assert not [event for event in events if secret in repr(event)]
    assert secret.encode() not in generate_latest(registry)
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"layer 0/" + name + b":" in stored, "the search reads the place of the keys"
    assert secret.encode() not in stored


ODD = {
    "newline": b"a\nb",
    "carriage return": b"a\rb",
    "ansi": b"\x1b[31mred",
    "c1": b"\x9b31m\xc2\x9b31m",
    "bidi": "\u202eevil\u2066".encode(),
    "surrogate": b"\xed\xa0\x80",
    "nul": b"a\x00b",
    "longer than a name": b"x" * 600,
    "long": b"x" * 9000,
    "longer": b"x" * 70_000,
    "all bytes": bytes(range(1, 256)),
}


@pytest.mark.finding("S3", "S7")
def test_odd_text_from_the_network_is_handled_or_refused_and_never_a_server_error(caplog):
    """In the header of a limit, in the ids and the body of a delivery, in the query and in the path."""
    connection = Connection("memory://network")
    app = Webhook(plain, connection, recipes.github, path="/hook", name="hooks")
    key = by_header("x-user", lambda value: value)
    app = RateLimit(app, connection, "1000/hour", name="users", key=key)
    found = {}

    with caplog.at_level(logging.DEBUG, "holdfast"), serving(app) as port:
        for what, text in ODD.items():
            quoted = b"".join(b"%%%02X" % byte for byte in text[:1000])
            found[what] = [
                status_of(port, request(b"/hook", [(b"x-user", text)], b"1")),
                status_of(port, request(b"/hook", [(b"x-github-delivery", text)], b"2")),
                status_of(port, request(b"/hook", [], b'{"x": "' + text + b'"}')),
                status_of(port, request(b"/hook?x=" + quoted, [], b"3")),
                status_of(port, request(b"/" + quoted, [], b"4")),
            ]
        assert status_of(port, request(b"/hook", [(b"x-user", b"ann")], b"5")) == 200

    statuses = {status for each in found.values() for status in each}
    assert statuses <= {200, 400, 431}
    assert found["long"][:2] == [431, 431]
    assert all(each[2:] == [200, 200, 200] for each in found.values())
    assert all(record.getMessage().isprintable() for record in caplog.records)

"""Rate limiting, webhooks and readiness for web applications: plain ASGI, Starlette, FastAPI."""

import asyncio
import json
import math
import time

import fastapi
import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from holdfast.contrib.asgi import Connection, RateLimit, Readiness, Webhook, by_header, content, recipes
from holdfast.errors import InvalidConfig
from holdfast.testing.servers import Server, available

RATE = "3/hour; 9/day"


async def plain(scope, receive, send):
    """Answer every request with 200."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"x-own", b"1")]})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


def with_starlette(connection, **options):
    routes = [Route("/{path:path}", lambda _request: PlainTextResponse("hello"))]
    return Starlette(
        routes=routes, middleware=[Middleware(RateLimit, connection=connection, rate=RATE, name="all", **options)]
    )


def with_fastapi(connection, **options):
    app = fastapi.FastAPI()
    app.get("/")(lambda: "hello")
    app.add_middleware(RateLimit, connection=connection, rate=RATE, name="all", **options)
    return app


def with_plain(connection, **options):
    return RateLimit(plain, connection, RATE, name="all", **options)


def asked(app, work, connection, client=("10.0.0.1", 1)):
    """Run the work with a client of the application, and close the connection at the end."""

    async def run():
        transport = httpx.ASGITransport(app, client=client)
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://app") as web:
                return await work(web)
        finally:
            await connection.close()

    return asyncio.run(run())


@pytest.mark.acceptance("A4-17")
@pytest.mark.parametrize("make", [with_plain, with_starlette, with_fastapi])
def test_too_many_requests_are_refused_with_headers_that_say_when_to_come_back(make, tmp_path):
    """Every answer has the common headers and those of the IETF's draft; Retry-After is never 0."""
    connection = Connection(f"sqlite://{tmp_path}/x.db")

    async def work(web):
        return [await web.get("/") for _ in range(5)]

    answers = asked(make(connection), work, connection)

    assert [each.status_code for each in answers] == [200, 200, 200, 429, 429]
    assert [each.headers["x-ratelimit-remaining"] for each in answers] == ["2", "1", "0", "0", "0"]
    for each in answers:
        assert each.headers["x-ratelimit-limit"] == "3"
        assert 3500 < int(each.headers["x-ratelimit-reset"]) - time.time() <= 3601
        assert each.headers["ratelimit-policy"] == '"3-per-3600s";q=3;w=3600, "9-per-86400s";q=9;w=86400'
        assert each.headers["ratelimit"].startswith('"3-per-3600s";r=')
    for refused in answers[3:]:
        retry = int(refused.headers["retry-after"])
        assert 3500 < retry <= 3600
        assert refused.json() == {"error": "too many requests", "limit": 3, "retry_after": retry}
    assert "retry-after" not in answers[0].headers


def test_retry_after_is_at_least_one_second():
    """Rounding down would give 0, and all clients would come back at once."""
    connection = Connection("memory://least")
    app = RateLimit(plain, connection, "1/200ms", name="all")

    async def work(web):
        return [await web.get("/") for _ in range(4)]

    answers = asked(app, work, connection)

    refused = [each for each in answers if each.status_code == 429]
    assert refused
    assert {each.headers["retry-after"] for each in refused} == {"1"}
    assert {each.headers["ratelimit-policy"] for each in answers} == {'"1-per-200ms";q=1;w=1'}


def test_each_key_is_counted_separately_and_some_are_exempt():
    """The key is the address, the user or a function; assets are free."""
    connection = Connection("memory://keys")
    app = RateLimit(plain, connection, "1/hour", name="all", key=by_header("x-user", str), exempt=("/assets/",))

    async def work(web):
        people = [(await web.get("/", headers={"x-user": user})).status_code for user in ("ann", "bob", "ann", "bob")]
        anonymous = [(await web.get("/")).status_code for _ in range(2)]
        assets = [(await web.get("/assets/x.js", headers={"x-user": "ann"})).status_code for _ in range(3)]
        return people, anonymous, assets

    assert asked(app, work, connection) == ([200, 200, 429, 429], [200, 429], [200] * 3)


def test_requests_above_a_lower_rate_are_slowed_before_they_are_refused():
    """Two requests per second are free, two more are delayed, and the others refused."""
    connection = Connection("memory://slow")
    app = RateLimit(plain, connection, "4/minute", name="all", slow="2/minute", delay=0.3)

    async def timed(web):
        began = time.monotonic()
        status = (await web.get("/")).status_code
        return status, time.monotonic() - began

    async def work(web):
        return [await timed(web) for _ in range(6)]

    found = asked(app, work, connection)

    assert [status for status, _ in found] == [200, 200, 200, 200, 429, 429]
    assert all(seconds >= 0.29 for _, seconds in found[2:4])


def test_an_invalid_rate_raises_when_the_application_is_built():
    """The error does not wait for the first request."""
    for options in ({"rate": "often"}, {"rate": "1/second", "slow": "seldom"}):
        with pytest.raises(InvalidConfig):
            RateLimit(plain, Connection("memory://"), name="all", **options)


def test_the_connection_is_closed_when_the_server_stops():
    """The connection ends with the application."""
    connection = Connection("memory://life")
    received = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent = []

    async def run():
        app = RateLimit(Readiness(connection), connection, "1/hour", name="all")
        client = await connection()

        async def receive():
            return next(received)

        async def send(message):
            sent.append((message["type"], client._client.state))

        await app({"type": "lifespan"}, receive, send)

    asyncio.run(run())

    assert sent == [("lifespan.startup.complete", "open"), ("lifespan.shutdown.complete", "closed")]


@pytest.mark.acceptance("A4-19")
def test_readiness_and_the_default_policy_report_an_unreachable_server():
    """A load balancer removes the instance; the local share admits further requests."""
    with Server(next(iter(available()))) as server:
        connection = Connection(server.url)
        ready = Readiness(connection)
        app = RateLimit(plain, connection, "20/hour", name="all")

        async def run():
            async def status(which):
                async with httpx.AsyncClient(transport=httpx.ASGITransport(which), base_url="http://app") as web:
                    answer = await web.get("/")
                    return answer.status_code, answer.text

            before = await status(ready), await status(app)
            server.kill()
            during = await status(ready), [(await status(app))[0] for _ in range(4)]
            server.start()
            await asyncio.sleep(0.2)
            after = await status(ready)
            await connection.close()
            return before, during, after

        before, during, after = asyncio.run(run())

    assert before == ((200, '{"status": "ready"}'), (200, "/"))
    assert during[0][0] == 503
    assert json.loads(during[0][1])["status"] == "not ready"
    assert during[1] == [200, 200, 429, 429]
    assert after[0] == 200


class Handler:
    """A webhook application that may fail."""

    def __init__(self, *statuses):
        self.bodies = []
        self._statuses = list(statuses)

    async def handle(self, request):
        body = await request.body()
        self.bodies.append(body)
        status = self._statuses.pop(0) if self._statuses else 200
        if status == "raise":
            raise RuntimeError("as the test demands")
        return JSONResponse({"handled": len(self.bodies)}, status)


def hooked(handler, recipe=content, url="memory://hooks", **options):
    connection = Connection(url)
    routes = [Route(path, handler.handle, methods=["POST", "GET"]) for path in ("/hook", "/other")]
    return Webhook(Starlette(routes=routes), connection, recipe, path="/hook", name="hooks", **options), connection


def test_a_repeated_delivery_is_answered_and_not_handled():
    """The answer is 200, so that the sender stops; only the path of the hook is checked."""
    handler = Handler()
    app, connection = hooked(handler, url="memory://again")

    async def work(web):
        first = await web.post("/hook", content=b'{"a": 1, "b": 2}')
        again = await web.post("/hook", content=b'{"b": 2, "a": 1}')
        other = await web.post("/hook", content=b'{"b": 3, "a": 1}')
        elsewhere = [(await web.post("/other", content=b"same")).status_code for _ in range(2)]
        looked = (await web.get("/hook")).status_code
        return first, again, other, elsewhere, looked

    first, again, other, elsewhere, looked = asked(app, work, connection)

    assert (first.status_code, first.json()) == (200, {"handled": 1})
    assert (again.status_code, again.json()) == (200, {"status": "ignored", "reason": "duplicate"})
    assert (other.status_code, other.json()) == (200, {"handled": 2})
    assert (elsewhere, looked) == ([200, 200], 200)
    assert handler.bodies[:2] == [b'{"a": 1, "b": 2}', b'{"b": 3, "a": 1}']


@pytest.mark.acceptance("A4-13")
def test_after_a_failed_handler_the_retry_is_handled_once():
    """After an error status or an exception the key is free, and the event is not lost."""
    handler = Handler(400, 503, "raise")
    app, connection = hooked(handler, url="memory://fails")

    async def work(web):
        answers = []
        for _ in range(6):
            try:
                answers.append((await web.post("/hook", content=b"event")).status_code)
            except RuntimeError as error:
                answers.append(str(error))
        return answers

    assert asked(app, work, connection) == [400, 503, "as the test demands", 200, 200, 200]
    assert len(handler.bodies) == 4


def test_an_oversized_or_incomplete_delivery_is_not_handled():
    """An incomplete delivery does not count."""
    handler = Handler()
    app, connection = hooked(handler, url="memory://large", largest=10)

    async def work(web):
        async def gone():
            return {"type": "http.disconnect"}

        sent = []
        scope = {"type": "http", "method": "POST", "path": "/hook", "headers": []}
        await app(scope, gone, sent.append)
        return (await web.post("/hook", content=b"x" * 11)).status_code, sent

    assert asked(app, work, connection) == (413, [])
    assert handler.bodies == []


def test_without_the_engine_a_delivery_gets_503_and_retry_after():
    """Exclusion fails closed: the answer is 503 with Retry-After."""
    handler = Handler()
    app, connection = hooked(handler, url="redis://127.0.0.1:1")

    async def work(web):
        return await web.post("/hook", content=b"event")

    answer = asked(app, work, connection)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert handler.bodies == []


SENDERS = {
    recipes.github: [{"X-GitHub-Event": "push", "X-GitHub-Delivery": "guid-1"}, b'{"ref": "main"}'],
    recipes.gitlab: [{"X-Gitlab-Event": "Note Hook", "Idempotency-Key": "key-1"}, b'{"object_attributes": {"id": 7}}'],
    recipes.slack: [{}, b'{"type": "event_callback", "event_id": "Ev1"}'],
    recipes.jira: [{"X-Atlassian-Webhook-Identifier": "id-1"}, b'{"webhookEvent": "jira:issue_updated", "id": 7}'],
    recipes.linear: [{"Linear-Event": "Issue", "Linear-Delivery": "guid-1"}, b'{"action": "update"}'],
    recipes.content: [{}, b"not even JSON"],
}


def scoped(headers):
    return {"headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()]}


@pytest.mark.acceptance("A4-15")
@pytest.mark.parametrize("recipe", SENDERS, ids=lambda recipe: recipe.__name__)
def test_the_same_id_with_another_content_event_or_sender_is_no_duplicate(recipe):
    """An update of the same object is another event, and ids of different senders never collide."""
    headers, body = SENDERS[recipe]
    key = recipe(scoped(headers), body)

    assert recipe(scoped(headers), body) == key
    assert recipe(scoped({**headers, "User-Agent": "other"}), body) == key
    assert recipe(scoped(headers), body.replace(b"u", b"v").replace(b"n", b"m") + b" ") != key
    for name in headers:
        assert recipe(scoped({**headers, name: "other"}), body) != key
    assert len({other(scoped(headers), body) for other in SENDERS}) == len(SENDERS)
    assert math.ceil(len(key.encode()) / 100) == 1, "short enough for any name"


@pytest.mark.parametrize("make", [Starlette, fastapi.FastAPI], ids=["starlette", "fastapi"])
def test_readiness_at_a_route_answers_without_a_redirect(make):
    """A probe of a load balancer follows no redirect."""

    async def statuses(url):
        connection, app = Connection(url), make()
        app.add_route("/ready", Readiness(connection))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            answer = await client.get("/ready")
        await connection.close()
        return answer.status_code

    assert asyncio.run(statuses("memory://")) == 200
    assert asyncio.run(statuses("redis://127.0.0.1:1")) == 503


def test_wrong_arguments_are_refused_when_the_application_is_built():
    """A misspelt URL or a missing slash must not wait for the first request, or turn deduplication off silently."""
    connection = Connection("memory://")
    for wrong in (
        lambda: Connection("redis//h"),
        lambda: Readiness("redis://h"),
        lambda: RateLimit(plain, "redis://h", RATE, name="all"),
        lambda: RateLimit(plain, connection, RATE, name="all", key="ip"),
        lambda: Webhook(plain, connection, "github", path="/hook", name="all"),
        lambda: Webhook(plain, connection, content, path="hook", name="all"),
    ):
        with pytest.raises(InvalidConfig):
            wrong()


def test_a_key_that_is_no_text_is_refused_with_the_rule():
    """A user id is often a number; Python's own error would not help."""
    app = RateLimit(plain, connection := Connection("memory://"), RATE, name="all", key=lambda _scope: 42)

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            try:
                await client.get("/")
            finally:
                await connection.close()

    with pytest.raises(InvalidConfig, match="must be text or None"):
        asyncio.run(ask())

"""A client that listens for expired consumer sessions, and what the servers know of its subscriptions."""

from holdfast import config
from holdfast.engines import open_engine
from holdfast.testing import eventually

SETTING = "notify-keyspace-events"
WAIT_S = 20


class Listener:
    """One client that listens; `expired` and `events` are what it has received."""

    def __init__(self, url, names=("q",), *, configure=True, on_end=None, emit=None):
        self.expired, self.events = [], []
        self.engine = open_engine(config.settings(url))
        try:
            self.expiries = self.engine.watch_expiries(
                names,
                configure=configure,
                on_end=on_end or (lambda name, token: self.expired.append((name, token))),
                emit=emit or (lambda kind, detail: self.events.append((kind, detail))),
            )
        except BaseException:
            self.engine.close()
            raise

    def kinds(self):
        return [kind for kind, _ in self.events.copy()]

    def details(self, kind):
        """Return the details of all events of this kind."""
        return [detail for each, detail in self.events.copy() if each == kind]

    def until_expired(self, *expected):
        message = f"{expected} among {self.expired}; events: {self.events}"
        eventually(lambda: set(expected) <= set(self.expired), WAIT_S, message)

    def close(self):
        self.expiries.close()
        self.engine.close()


def alive_key(name, token, prefix="hf2"):
    return f"{prefix}:{{{name}}}:queue:alive:{token}"


def expire(server, name, token, **where):
    """Let a consumer session expire now."""
    server.command("SET", alive_key(name, token, **where), "", "PX", 50)


def letters(server):
    return server.command("CONFIG", "GET", SETTING)[1].decode()


def subscribed(server):
    """Return how many subscriptions of holdfast the server has."""
    lines = server.command("CLIENT", "LIST").decode().splitlines()
    ours = [dict(fact.split("=", 1) for fact in line.split(" ") if "=" in fact) for line in lines]
    return sum(int(each["sub"]) + int(each["psub"]) for each in ours if each["name"] == "holdfast")


def until_subscribed(servers, count=1):
    """Wait until each of the servers has that many subscriptions."""
    eventually(
        lambda: [subscribed(server) for server in servers] == [count] * len(servers),
        WAIT_S,
        f"{count} subscription at each of {servers}",
    )

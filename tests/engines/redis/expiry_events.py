"""Somebody who listens for the ends of consumers, and what servers know of it."""

from holdfast import config
from holdfast.engines import open_engine
from holdfast.testing import eventually

SETTING = "notify-keyspace-events"
WAIT_S = 20


class Listener:
    """One client that listens; `ends` and `told` are what it has heard."""

    def __init__(self, url, names=("q",), *, configure=True, on_end=None, emit=None):
        self.ends, self.events = [], []
        self.engine = open_engine(config.settings(url))
        try:
            self.expiries = self.engine.watch_expiries(
                names,
                configure=configure,
                on_end=on_end or (lambda name, token: self.ends.append((name, token))),
                emit=emit or (lambda kind, detail: self.events.append((kind, detail))),
            )
        except BaseException:
            self.engine.close()
            raise

    def kinds(self):
        return [kind for kind, _ in self.told.copy()]

    def said(self, kind):
        """The details of all that was told under this kind."""
        return [detail for each, detail in self.told.copy() if each == kind]

    def until_heard(self, *ends):
        eventually(lambda: set(ends) <= set(self.ends), WAIT_S, f"{ends} among {self.ends}; told: {self.told}")

    def close(self):
        self.expiries.close()
        self.engine.close()


def live_key(name, token, prefix="hf2"):
    return f"{prefix}:{{{name}}}:queue:alive:{token}"


def end(server, name, token, **where):
    """A consumer whose time ends now."""
    server.command("SET", live_key(name, token, **where), "", "PX", 50)


def letters(server):
    return server.command("CONFIG", "GET", SETTING)[1].decode()


def subscribed(server):
    """How many connections of ours are subscribed there."""
    lines = server.command("CLIENT", "LIST").decode().splitlines()
    ours = [dict(fact.split("=", 1) for fact in line.split(" ") if "=" in fact) for line in lines]
    return sum(int(each["sub"]) + int(each["psub"]) for each in ours if each["name"] == "holdfast")


def until_subscribed(servers, count=1):
    """Each of them is listened to so often, and stays so."""
    eventually(
        lambda: [subscribed(server) for server in servers] == [count] * len(servers),
        WAIT_S,
        f"{count} subscription at each of {servers}",
    )

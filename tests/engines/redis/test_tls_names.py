"""TLS: a server whose certificate is not valid for its host gets no byte of a command, and so no password."""

import ssl

import pytest
import redis
import redis.asyncio

from holdfast import Unavailable
from holdfast.testing import eventually
from holdfast.testing.servers import certificates

WRONG = {
    "another host": ({"names": "DNS:elsewhere.example"}, True, "hostname mismatch|not valid for"),
    "an address of another host": ({"names": "IP:127.0.0.2,DNS:elsewhere.example"}, True, "mismatch|not valid for"),
    "expired": ({"days": -1}, True, "expired"),
    "self-signed": ({}, False, "self.signed"),
}
SECRET = "s3cr3t-word"


@pytest.fixture(params=["the default of this redis-py", "the default of redis-py 5"])
def defaults(request, monkeypatch):
    """Set the default of redis-py 5, which does not compare host names; return the settings of its client objects."""
    if request.param.endswith("py"):
        return {}
    for kind in (redis.SSLConnection, redis.asyncio.SSLConnection):
        made = kind.__init__
        names = made.__code__.co_varnames[: made.__code__.co_argcount][-len(made.__defaults__) :]
        values = dict(zip(names, made.__defaults__, strict=True)) | {"ssl_check_hostname": False}
        monkeypatch.setattr(made, "__defaults__", tuple(values.values()))
    return {"ssl_check_hostname": False}


def urls(proxy, shown, trusted, defaults):
    """Return what `connect` takes for one server: a URL, and both client objects of redis-py."""
    authority = f"?ssl_ca_certs={shown.authority}" if trusted else ""
    options = {"host": "localhost", "port": proxy.port, "password": SECRET, "ssl": True, **defaults}
    options |= {"ssl_ca_certs": str(shown.authority)} if trusted else {}
    return [
        f"rediss://:{SECRET}@localhost:{proxy.port}{authority}",
        f"rediss://:{SECRET}@127.0.0.1:{proxy.port}{authority}",
        redis.Redis(**options),
        redis.asyncio.Redis(**options),
    ]


@pytest.mark.finding("S1")
@pytest.mark.parametrize("wrong", WRONG)
def test_a_certificate_that_does_not_fit_is_refused_before_the_password_is_sent(slow, wrong, tmp_path, defaults):
    """Any server with any certificate could otherwise read the password and grant leases."""
    made, trusted, why = WRONG[wrong]
    shown = certificates(tmp_path, **made)
    proxy = slow.proxy(tls=shown)
    authority = f"?ssl_ca_certs={shown.authority}" if trusted else "?db=0"
    groups = [
        f"rediss+cluster://:{SECRET}@localhost:{proxy.port}{authority}",
        f"rediss+sentinel://:{SECRET}@localhost:{proxy.port}/main{authority}&sentinel_password={SECRET}",
    ]
    for url in urls(proxy, shown, trusted, defaults) + groups:
        client = slow.connect(url)
        with pytest.raises(Unavailable, match=f"(?i){why}") as trouble:
            client.lock("x").acquire(timeout=0)

        assert SECRET not in str(trouble.value)
    assert proxy.bytes_up == 0
    assert proxy.sent == []


@pytest.mark.finding("S1")
@pytest.mark.usefixtures("defaults")
def test_a_certificate_that_fits_is_accepted(slow, tmp_path):
    """The check refuses nothing that it should accept: a name, an address, and a program that turned it off."""
    shown, elsewhere = (certificates(tmp_path_of(tmp_path, each), names=each) for each in FITTING)
    proxy, other = slow.proxy(tls=shown), slow.proxy(tls=elsewhere)
    for host in ("localhost", "127.0.0.1"):
        client = slow.connect(f"rediss://{host}:{proxy.port}?ssl_ca_certs={shown.authority}")
        client.lock("x").acquire(timeout=5).release()
    for off in (f"ssl_check_hostname=False&ssl_ca_certs={elsewhere.authority}", "ssl_cert_reqs=none"):
        client = slow.connect(f"rediss://localhost:{other.port}?{off}")
        client.lock("x").acquire(timeout=5).release()
    theirs = redis.Redis(host="localhost", port=other.port, ssl=True, ssl_cert_reqs=ssl.CERT_NONE)
    slow.connect(theirs).lock("x").acquire(timeout=5).release()
    theirs.close()
    eventually(lambda: other.count() > 0)


FITTING = ("IP:127.0.0.1,DNS:localhost", "DNS:elsewhere.example")


def tmp_path_of(folder, names):
    """Return a new folder for the certificates of these names."""
    made = folder / str(len(names))
    made.mkdir()
    return made

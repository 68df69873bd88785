"""The keeper of a server that freezes, or whose replies get lost: it loses no lease that it has time to renew."""

import threading
import time

import pytest
from redis_faces import calls_of

from holdfast import LeaseLost
from holdfast.commands import Renew
from holdfast.testing import eventually
from tests.support.delay_line import DelayLine

# Which face holds the leases makes no difference to the keeper.
ONE_FACE = pytest.mark.parametrize("face", ["blocking"])


def end(leases):
    """Release the leases; return those that were lost."""
    lost = []
    for lease in leases:
        try:
            lease.release()
        except LeaseLost:
            lost.append(lease)
    return lost


@ONE_FACE
@pytest.mark.finding("X3")
@pytest.mark.parametrize(("many", "ttl", "frozen_s", "round_trip_s"), [(2000, 4, 2.6, 0.06), (5000, 5, 3, 0)])
def test_after_a_freeze_no_lease_with_time_left_is_lost(new_server, place_on, many, ttl, frozen_s, round_trip_s):
    """One late lease must not limit the renewals of the others, nor the connecting before them."""
    server = new_server()
    place = place_on(server)
    with DelayLine(server.port) as line:
        client = place.connect(line.url)
        leases = [client.lock(f"n{number}", ttl=ttl).acquire() for number in range(many)]
        line.delay(round_trip_s)
        trusted_s = 0.95 * ttl

        def ages_are_mixed():
            ages = [trusted_s - lease.remaining() for lease in leases]
            young = sum(age < trusted_s - frozen_s - 0.7 for age in ages)
            return young > many / 4 and many - young > many / 8

        time.sleep(ttl / 2)  # every lease was renewed over the slow line
        eventually(ages_are_mixed, 20, "young and old leases")
        server.freeze()
        time.sleep(frozen_s)
        server.thaw()
        left = {lease.token: lease.remaining() for lease in leases}
        time.sleep(1.3)  # longer than any lease had left: by then it was renewed or lost
        lost = [left[lease.token] for lease in leases if lease.lost]
        line.delay(0)
        end(leases)

    assert sum(seconds > 0.6 for seconds in left.values()) > many / 5
    assert sorted(seconds for seconds in lost if seconds > 0.6) == []


@pytest.mark.finding("X6")
@pytest.mark.parametrize("ttl", [1, 1.5])
def test_one_swallowed_renewal_loses_no_lease(place, ttl):
    """After an exchange without an answer, the keeper has time for a second one, on a fresh connection."""
    proxy = place.proxy()
    client = place.connect(proxy.url)
    lease = client.lock("x", ttl=ttl).acquire()
    eventually(lambda: place.kinds("renewed"), 10)

    for _ in range(3):
        proxy.swallow(when=calls_of(Renew))
        before = len(place.kinds("renewal_failed"))
        eventually(lambda before=before: len(place.kinds("renewal_failed")) > before, 10, "a swallowed renewal")
        renewals = len(place.kinds("renewed", "renewed_late"))
        eventually(lambda n=renewals: len(place.kinds("renewed", "renewed_late")) > n or lease.lost, 10)

    lost = end([lease])
    assert lost == []


@ONE_FACE
@pytest.mark.finding("X3")
def test_a_loss_is_reported_in_time_during_an_exchange_that_goes_on(place):
    """The exchange for the other lease may last beyond the deadline: it is neither cut nor does it delay the report."""
    proxy = place.proxy()
    told = {}
    client = place.connect(
        proxy.url,
        observer=lambda event: told.setdefault(event.name, time.monotonic()) if event.kind == "lost" else None,
    )
    seen = threading.Event()
    short = client.lock("short", ttl=0.4, on_loss=lambda _: seen.set()).acquire()
    long = client.lock("long", ttl=20).acquire()
    proxy.half_open()  # from now on the server is silent
    ends = time.monotonic() + short.remaining()
    client._client.keeper._renew_all_now = True
    client._client.keeper.wake()

    assert seen.wait(5)
    late_s = time.monotonic() - ends
    keeper = client._client.keeper
    assert keeper._in_exchange
    proxy.accept()
    eventually(lambda: long.remaining() > 15, 10)
    lost = end([short, long])

    assert lost == [short]
    assert told["short"] - ends < 0.15
    assert late_s < 0.15

"""The moment of the grant: another thread may look at the lease between any two lines."""

from __future__ import annotations

import holdfast
from holdfast.rules import trust


def test_a_keeper_that_looks_while_a_lease_is_granted_does_not_take_it_for_expired(url, monkeypatch):
    """Held without a deadline would look like a deadline long ago. On a busy machine a thread stops just there."""
    kinds = []
    with holdfast.connect(url, observer=lambda event: kinds.append(event.kind)) as client:
        real = trust.spans_ns

        def look_in_the_middle(*details):
            client._client.keeper._report_expired()
            return real(*details)

        monkeypatch.setattr(trust, "spans_ns", look_in_the_middle)
        with client.lock("x") as lease:
            lease.check()

    assert "lost" not in kinds

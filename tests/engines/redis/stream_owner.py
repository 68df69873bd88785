"""A pod of the tests: it owns whatever there is in a queue in parts, says so, and never ends by itself."""

import holdfast
from holdfast.testing import ready, tell

TTL_S, GRACE_S, PARTS = 3.0, 60.0, 8


def streams(hf):
    """Dead owners are looked for only after a long grace: whoever is faster has heard of it."""
    return hf.queue("streams", ttl=TTL_S, grace=GRACE_S).partitioned(PARTS)


def own(url):
    with holdfast.connect(url) as hf, streams(hf).owner("the first", events="listen") as owner:
        ready()
        for event in owner:
            tell(event.work.key)

"""A process of the tests that owns entries of a registry; it reads its commands from standard input, as JSON lines."""

import json
import sys

import holdfast


def main(url, label, ttl):
    lost = []
    hf = holdfast.connect(url, label=label, observer=lambda event: lost.append(event) if event.kind == "lost" else None)
    registry = hf.registry("conversations", ttl=float(ttl))
    leases = {}

    def claim(key, **options):
        try:
            got = registry.claim(key, {"server": label}, **options)
        except holdfast.NotAcquired as refusal:
            return {"refused": refusal.reason}
        except holdfast.Unavailable as error:
            return {"unavailable": error.reason}
        if not got:
            return {"owner": got.owner.label, "fence": got.fence, "remaining": got.remaining}
        leases[key] = got
        return {"fence": got.fence, "remaining": got.remaining()}

    def look():
        return {"owned": sorted(key for key, lease in leases.items() if not lease.lost), "lost": [e.name for e in lost]}

    deeds = {"claim": claim, "look": look}
    print(json.dumps({"ready": label}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(deeds[order.pop("deed")](**order)), flush=True)
    registry.release_all()
    hf.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

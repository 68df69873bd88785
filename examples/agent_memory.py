"""A memory that several agents share: each is a process of its own, and all of them write at the same time.

    python examples/agent_memory.py /srv/memory store "she likes green tea"
    python examples/agent_memory.py /srv/memory recall "what does she drink? tea?"
    python examples/agent_memory.py /srv/memory forget <id>
    python examples/agent_memory.py /srv/memory crowd 4 25     # four agents at once, 25 memories each

It needs `pip install 'holdfast[lancedb]'`. Without more it is guarded by leases in the directory's own file. For
several hosts, set LOCKING=redis and HOLDFAST_LANCEDB_URL=redis://… in the environment of all of them.
"""

import hashlib
import math
import os
import re
import subprocess
import sys
import uuid

import pyarrow as pa

from holdfast.contrib import lancedb

WIDTH = 64
SCHEMA = pa.schema([("id", pa.string()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), WIDTH))])


def embed(text):
    """An embedding without a model: words that are the same are near each other. Use a real one for meaning."""
    vector = [0.0] * WIDTH
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        vector[int.from_bytes(digest[:2]) % WIDTH] += 1.0 if digest[2] % 2 else -1.0
    length = math.sqrt(sum(part * part for part in vector)) or 1.0
    return [part / length for part in vector]


def memory(text):
    return {"id": uuid.uuid4().hex, "text": text, "vector": embed(text)}  # made before any lock is asked for


def remember(store, text):
    row = memory(text)
    written = store.add(row)
    print(f"{row['id']} is in version {written.version}")


def recall(store, question):
    if not store.index_text("text"):
        print(f"by meaning only: {store.status().full_text}", file=sys.stderr)
    for found in store.search(embed(question), question, limit=3):
        print(f"{found['id']} {found['text']}")


def forget(store, *ids):
    print(f"{store.delete(*ids).rows} forgotten")


def agent(store, name, memories):
    for number in range(int(memories)):
        store.add(memory(f"agent {name} saw thing {number}"))


def crowd(store, agents, memories):
    """Each agent is this very program in a process of its own."""
    command = [sys.executable, __file__, str(store.directory), "agent"]
    started = [subprocess.Popen([*command, str(name), memories]) for name in range(int(agents))]
    codes = [process.wait() for process in started]
    print(f"{store.count()} memories by {len(codes)} agents, {sum(code != 0 for code in codes)} failed")
    return max(codes)


DEEDS = {"store": remember, "recall": recall, "forget": forget, "agent": agent, "crowd": crowd}


def main(directory, deed, *words):
    os.makedirs(directory, exist_ok=True)
    with lancedb.open_store(directory, "memories", os.environ.get("LOCKING", "embedded"), schema=SCHEMA) as store:
        return DEEDS[deed](store, *words)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[2] not in DEEDS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

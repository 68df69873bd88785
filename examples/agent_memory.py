"""A memory that several agents share: each agent is a process, and all of them write at the same time.

    python examples/agent_memory.py /srv/memory store "she likes green tea"
    python examples/agent_memory.py /srv/memory recall "what does she drink? tea?"
    python examples/agent_memory.py /srv/memory forget <id>
    python examples/agent_memory.py /srv/memory fleet 4 25     # four agents at once, 25 memories each

It needs `pip install holdfast-lancedb`. By default, leases in a file of the directory guard the table. For
several hosts, set LOCKING=redis and HOLDFAST_LANCEDB_URL=redis://… in the environment of each.
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
    """Return an embedding without a model: texts with the same words are near each other. Use a model for meaning."""
    vector = [0.0] * WIDTH
    for word in re.findall(r"\w+", text.lower()):
        digest = hashlib.blake2b(word.encode(), digest_size=4).digest()
        vector[int.from_bytes(digest[:2]) % WIDTH] += 1.0 if digest[2] % 2 else -1.0
    length = math.sqrt(sum(part * part for part in vector)) or 1.0
    return [part / length for part in vector]


def memory(text):
    return {"id": uuid.uuid4().hex, "text": text, "vector": embed(text)}  # computed before the program takes the lock


def remember(store, text):
    row = memory(text)
    written = store.add(row)
    print(f"{row['id']} is in version {written.version}")


def recall(store, question):
    if not store.index_text("text"):
        print(f"search by meaning only: {store.status().full_text}", file=sys.stderr)
    for found in store.search(embed(question), question, limit=3):
        print(f"{found['id']} {found['text']}")


def forget(store, *ids):
    print(f"{store.delete(*ids).rows} forgotten")


def agent(store, name, memories):
    for number in range(int(memories)):
        store.add(memory(f"agent {name} saw thing {number}"))


def fleet(store, agents, memories):
    """Start this program once for each agent, and wait for all."""
    command = [sys.executable, __file__, str(store.directory), "agent"]
    started = [subprocess.Popen([*command, str(name), memories]) for name in range(int(agents))]
    codes = [process.wait() for process in started]
    print(f"{store.count()} memories by {len(codes)} agents, {sum(code != 0 for code in codes)} failed")
    return max(codes)


ACTIONS = {"store": remember, "recall": recall, "forget": forget, "agent": agent, "fleet": fleet}


def main(directory, action, *words):
    os.makedirs(directory, exist_ok=True)
    with lancedb.open_store(directory, "memories", os.environ.get("LOCKING", "embedded"), schema=SCHEMA) as store:
        return ACTIONS[action](store, *words)


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[2] not in ACTIONS:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

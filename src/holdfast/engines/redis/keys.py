"""The names of keys and channels on the server, and the version of their layout.

Every key begins with the prefix, which carries the layout version, and then the name as a hash tag: all keys of one
name are in one slot of a cluster.
"""

from __future__ import annotations

from holdfast.names import escaped_hash_tag

LAYOUT = 2
OLD_LAYOUT = LAYOUT - 1
PREFIX, _OLD_PREFIX = f"hf{LAYOUT}", f"hf{OLD_LAYOUT}"
# Separates the registry from the entry in the name of an entry's lease.
ENTRY_SEPARATOR = "\0"


def prefix_of(namespace: str) -> str:
    """Return what every key and channel of a namespace begins with, so that a user's rights can be limited to it."""
    return f"{PREFIX}:{namespace}" if namespace else PREFIX


def old_prefix(prefix: str) -> str:
    """Return the prefix that the layout before this one has in the same namespace."""
    return _OLD_PREFIX + prefix.removeprefix(PREFIX)


def layout_key(prefix: str) -> str:
    """Return the key of a layout's marker: a later version writes its number there, and older clients refuse it."""
    return f"{prefix}:layout"


def hash_tag(name: str) -> str:
    """Return the hash tag of a name, from which its slot is computed. Entries share the slot of their registry."""
    if ENTRY_SEPARATOR in name:
        name = name.partition(ENTRY_SEPARATOR)[0]
    return escaped_hash_tag(name)


def record_key(prefix: str, name: str) -> str:
    """Return the key of a name's record. The name is its hash tag, so that all keys of the name share one slot."""
    key = f"{prefix}:{{{hash_tag(name)}}}"
    if ENTRY_SEPARATOR not in name:
        return key
    entry = name.partition(ENTRY_SEPARATOR)[2].replace("%", "%25").replace(":", "%3A")
    return f"{key}:e:{entry}"

"""Names for the completion of the shell: quick and silent, because the user waits with a finger on the key."""

from __future__ import annotations

import shlex
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import typer  # noqa: TC002 - typer reads the annotation

from holdfast.commands import POOL, RWLOCK, SEMAPHORE

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_S = 0.3
_MOST = 200


def names_of(*kinds: str) -> Callable[[typer.Context, str], list[str]]:
    """Return a completion of names: of leases if the kind is empty, of pools or queues."""

    def complete(ctx: typer.Context, incomplete: str) -> list[str]:
        # A completion is the only call that needs an engine so early. The import does not count as waiting for it.
        from holdfast.cli.connect import CLOSE_S, connect  # noqa: PLC0415

        found: set[str] = set()

        def search() -> None:
            with suppress(Exception):  # the shell would print an error into the line that the user types
                hf = connect(ctx.params.get("url"))
                try:
                    for kind in kinds:
                        found.update(hf._client.engine.names(incomplete, _MOST, kind).names)
                finally:
                    hf.close(CLOSE_S)

        # An engine that is down or slow must not keep the user waiting, so the process ends without this thread.
        searching = threading.Thread(target=search, name="holdfast-completion", daemon=True)
        searching.start()
        searching.join(_LONGEST_S)
        # The shell inserts a name as it is. A name that needs quotes could be a command, so it is left out.
        return sorted(name for name in found.copy() if shlex.quote(name) == name)

    return complete


LEASES, POOLS, QUEUES = names_of("", POOL, SEMAPHORE, RWLOCK), names_of(POOL), names_of("queue")

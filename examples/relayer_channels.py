"""A relayer that sends transactions through a pool of channel accounts, each of which may have one in flight.

The rule: make the effect durable, then forget or keep the sequence number, then give the channel back. How a channel is
given back depends on what is known: at once if the outcome is certain, after a while if it is not.

    python examples/relayer_channels.py [URL]

The ledger is simulated. Everything about channels is real: put a server's URL there and start it several times. The
channels stay, because others may be using them; `holdfast pool set channels --yes` ends them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

import holdfast

LOCK_TTL_S = 30.0  # how long a channel may be busy with a transaction of which nothing more is heard
LEDGER_S = 6.0  # one ledger: after that every node knows of the last one
SEQUENCE_MAX_AGE_S = 120.0

Outcome = Literal["confirmed", "pending", "wait timeout", "unknown", "failed on chain", "error"]


class OnChainFailed(Exception):
    """The transaction is on the ledger, and failed there: its sequence number is used up."""


class UnknownStatus(Exception):
    """The node said something that nobody here understands."""


class WaitTimeout(Exception):
    """Nothing was heard in time; the transaction may still come."""


class SubmitError(Exception):
    """It was refused before it was sent."""


@dataclass
class Ledger:
    """A ledger that takes each sequence number of an account once, in order."""

    sequences: dict[str, int] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)
    conflicts: int = 0

    def sequence(self, account: str) -> int:
        with self.guard:
            return self.sequences.get(account, 0)

    def submit(self, account: str, sequence: int, outcome: Outcome) -> str:
        """The status that a node would tell; `SubmitError` if nothing was sent."""
        if outcome == "error":
            raise SubmitError(account)
        with self.guard:
            if sequence != self.sequences.get(account, 0) + 1:
                self.conflicts += 1
                raise SubmitError(f"{account}: bad sequence {sequence}")
            self.sequences[account] = sequence
        return outcome


@dataclass
class Sequences:
    """Sequence numbers that need not be asked for again, while they are young and nobody doubts them."""

    known: dict[str, tuple[int, float]] = field(default_factory=dict)

    def next(self, ledger: Ledger, account: str) -> int:
        last, stored = self.known.get(account, (0, 0.0))
        fresh = account in self.known and time.monotonic() - stored < SEQUENCE_MAX_AGE_S
        return (last if fresh else ledger.sequence(account)) + 1

    def used(self, account: str, sequence: int) -> None:
        self.known[account] = (sequence, time.monotonic())

    def clear(self, account: str) -> None:
        self.known.pop(account, None)


class Relayer:
    """What a worker does with a request."""

    def __init__(self, hf: holdfast.Holdfast, ledger: Ledger, sequences: Sequences) -> None:
        self.ledger = ledger
        self.sequences = sequences
        self.pool = hf.pool(
            "channels",
            ttl=LOCK_TTL_S,
            timeout=10,
            cool=LEDGER_S,
            cool_on=(OnChainFailed, UnknownStatus),
            on_death=LEDGER_S,
        )

    def simulate(self, account: str) -> int:
        """A read-only call: no channel is taken at all."""
        return self.ledger.sequence(account)

    def send(self, outcome: Outcome, *, contract: str | None = None, share: float = 1.0) -> str:
        """Send one transaction. `outcome` is what the simulated ledger will do with it."""
        with self.pool.borrow(tag=contract, share=share) as channel:
            sequence = self.sequences.next(self.ledger, channel.name)
            try:
                status = self.ledger.submit(channel.name, sequence, outcome)
            except SubmitError:
                self.sequences.clear(channel.name)  # it may be what was wrong
                raise  # the channel goes back at once: nothing was sent
            channel.check()  # before anything is decided: is it still ours?
            return self._settle(channel, sequence, status)

    def _settle(self, channel: holdfast.Item, sequence: int, status: str) -> str:
        if status == "confirmed":
            self.sequences.used(channel.name, sequence)
            return status  # the channel goes back at once
        self.sequences.clear(channel.name)
        if status == "pending":
            channel.cool(LOCK_TTL_S)  # it is still in flight: nobody may use the channel meanwhile
            return status
        if status == "wait timeout":
            channel.cool(LOCK_TTL_S)
            raise WaitTimeout(channel.name)
        if status == "failed on chain":
            raise OnChainFailed(channel.name)  # one of `cool_on`
        raise UnknownStatus(channel.name)  # one of `cool_on`


def main(url: str = "memory://") -> None:
    """Four workers and six channels for two seconds; most transactions go well."""
    ledger, sequences, confirmed = Ledger(), Sequences(), []
    with holdfast.connect(url, label="relayer") as hf:
        hf.pool("channels").set_items([f"channel {number}" for number in range(1, 7)])
        until = time.monotonic() + 2

        def work(seed: int) -> None:
            dice, relayer = random.Random(seed), Relayer(hf, ledger, sequences)
            while time.monotonic() < until:
                outcome: Outcome = "error" if dice.random() < 0.1 else "confirmed"
                try:
                    confirmed.append(relayer.send(outcome))
                except SubmitError:
                    continue
                time.sleep(dice.random() / 1000)

        workers = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for item in sorted(hf.pool("channels").stats().items):
            print(f"{item.name}: used {item.used} times, {item.state}")
        print(f"{len(confirmed)} transactions confirmed, {ledger.conflicts} sequence conflicts")


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    main(*sys.argv[1:])

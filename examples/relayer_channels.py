"""A relayer that sends transactions through a pool of channel accounts; each account may have one in flight.

The rule: make the effect durable, then forget or keep the sequence number, then return the channel. The relayer returns
a channel at once if the outcome is certain, and lets it cool down if it is not.

    python examples/relayer_channels.py [URL]

The blockchain is simulated. The channels are real: pass a server's URL and start the program several times. The
channels stay, because others may be using them; `holdfast pool set channels --yes` removes them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Literal

import holdfast

LOCK_TTL_S = 30.0  # how long a channel may be busy with a transaction without news
BLOCK_S = 6.0  # one block: after that every node knows the last one
SEQUENCE_MAX_AGE_S = 120.0

Outcome = Literal["confirmed", "pending", "wait timeout", "unknown", "failed on chain", "error"]


class OnChainFailed(Exception):
    """The transaction is on the chain, and failed there: its sequence number is used."""


class UnknownStatus(Exception):
    """The node returned an unknown status."""


class WaitTimeout(Exception):
    """No answer came in time; the transaction may still arrive."""


class SubmitError(Exception):
    """The node refused the transaction before it was sent."""


@dataclass
class Chain:
    """A simulated blockchain that accepts each sequence number of an account once, in order."""

    sequences: dict[str, int] = field(default_factory=dict)
    guard: threading.Lock = field(default_factory=threading.Lock)
    conflicts: int = 0

    def sequence(self, account: str) -> int:
        with self.guard:
            return self.sequences.get(account, 0)

    def submit(self, account: str, sequence: int, outcome: Outcome) -> str:
        """Return the status of the transaction; raise `SubmitError` if nothing was sent."""
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
    """A cache of sequence numbers that are recent and certain."""

    known: dict[str, tuple[int, float]] = field(default_factory=dict)

    def next(self, chain: Chain, account: str) -> int:
        last, stored = self.known.get(account, (0, 0.0))
        fresh = account in self.known and time.monotonic() - stored < SEQUENCE_MAX_AGE_S
        return (last if fresh else chain.sequence(account)) + 1

    def used(self, account: str, sequence: int) -> None:
        self.known[account] = (sequence, time.monotonic())

    def clear(self, account: str) -> None:
        self.known.pop(account, None)


class Relayer:
    """A worker that sends transactions."""

    def __init__(self, hf: holdfast.Holdfast, chain: Chain, sequences: Sequences) -> None:
        self.chain = chain
        self.sequences = sequences
        self.pool = hf.pool(
            "channels",
            ttl=LOCK_TTL_S,
            timeout=10,
            cool=BLOCK_S,
            cool_on=(OnChainFailed, UnknownStatus),
            on_death=BLOCK_S,
        )

    def simulate(self, account: str) -> int:
        """Make a read-only call, which needs no channel."""
        return self.chain.sequence(account)

    def send(self, outcome: Outcome, *, contract: str | None = None, share: float = 1.0) -> str:
        """Send one transaction. `outcome` is the result that the simulated chain will give."""
        with self.pool.borrow(tag=contract, share=share) as channel:
            sequence = self.sequences.next(self.chain, channel.name)
            try:
                status = self.chain.submit(channel.name, sequence, outcome)
            except SubmitError:
                self.sequences.clear(channel.name)  # it may be the reason
                raise  # the pool gets the channel back at once: nothing was sent
            channel.check()  # is the channel still ours?
            return self._finish(channel, sequence, status)

    def _finish(self, channel: holdfast.Item, sequence: int, status: str) -> str:
        if status == "confirmed":
            self.sequences.used(channel.name, sequence)
            return status  # the pool gets the channel back at once
        self.sequences.clear(channel.name)
        if status == "pending":
            channel.cool(LOCK_TTL_S)  # still in flight: the channel stays reserved meanwhile
            return status
        if status == "wait timeout":
            channel.cool(LOCK_TTL_S)
            raise WaitTimeout(channel.name)
        if status == "failed on chain":
            raise OnChainFailed(channel.name)  # one of `cool_on`
        raise UnknownStatus(channel.name)  # one of `cool_on`


def main(url: str = "memory://") -> None:
    """Run four workers with six channels for two seconds; most transactions succeed."""
    chain, sequences, confirmed = Chain(), Sequences(), []
    with holdfast.connect(url, label="relayer") as hf:
        hf.pool("channels").set_items([f"channel {number}" for number in range(1, 7)])
        until = time.monotonic() + 2

        def work(seed: int) -> None:
            dice, relayer = random.Random(seed), Relayer(hf, chain, sequences)
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
        print(f"{len(confirmed)} transactions confirmed, {chain.conflicts} sequence conflicts")


if __name__ == "__main__":
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        sys.exit(__doc__)
    main(*sys.argv[1:])

"""Random traffic on a queue, one step at a time, between the pages of a check."""

from holdfast.commands.queue import (
    ACK,
    REJECT,
    RELEASE,
    RETRY,
    ConsumerHeartbeat,
    Join,
    Leave,
    ListDeadLetters,
    MessageOutcome,
    NewMessage,
    Publish,
    Purge,
    Receive,
    ReclaimExpired,
    RecordOutcomes,
    Redrive,
    TakeOver,
)

LONG_MS = 60_000
KEYS = ("a", "b", "c", "d")
BUSY = ("", "high")


class Traffic:
    """Producers and consumers of the lanes `BUSY`; they leave other lanes alone."""

    def __init__(self, peer, by, name="q"):
        self.peer, self.by, self.name, self.calls, self.fresh = peer, by, name, 0, 0
        self.held = {}  # by consumer
        self.join()
        self.join()

    def step(self):
        """Do one random step."""
        self.by.choice(
            (self.publish, self.publish, self.take, self.take, self.conclude, self.conclude, self.take_over,
             self.take_over, self.leave, self.join, self.die, self.redrive)
        )()  # fmt: skip

    def publish(self):
        self.calls += 1
        drafts = []
        for number in range(self.by.choice((1, 2, 9))):
            key = self.by.choice(("", "", *KEYS))
            wait_ms = 0 if key else self.by.choice((0, 0, 0, 1, 30))
            drafts.append(
                NewMessage(f"{self.calls}/{number}", b"body", delay_ms=wait_ms, key=key, lane=self.by.choice(BUSY))
            )
        self.peer.send(Publish(self.name, f"call {self.calls}", tuple(drafts)))

    def join(self, ttl_ms=LONG_MS):
        self.fresh += 1
        self.held[f"t{self.fresh}"] = []
        self.peer.send(Join(self.name, f"t{self.fresh}", "", "somebody", ttl_ms))

    def take(self):
        token = self.by.choice(list(self.held))
        taken = self.peer.send(Receive(self.name, token, self.by.choice((1, 3, 9)), lanes=BUSY, quarantine_max=1))
        self.held[token] += [each.entry for each in taken.deliveries]

    def conclude(self):
        token = self.by.choice(list(self.held))
        entries, self.held[token] = self.held[token][:4], self.held[token][4:]
        kinds = (ACK, ACK, RETRY, RELEASE, REJECT)
        said = tuple(
            MessageOutcome(entry, self.by.choice(kinds), delay_ms=self.by.choice((0, 0, 1)), reason="r")
            for entry in entries
        )
        if said:
            self.peer.send(RecordOutcomes(self.name, token, said))

    def take_over(self):
        token = self.by.choice(list(self.held))
        answer = self.peer.send(TakeOver(self.name, token, self.by.choice(KEYS), 9))
        self.held[token] += [each.entry for each in getattr(answer, "deliveries", ())]

    def leave(self):
        if len(self.held) > 2:
            token = self.by.choice(list(self.held))
            self.peer.send(Leave(self.name, token))
            del self.held[token]

    def die(self):
        """Let a session expire, and reclaim its messages."""
        token = self.by.choice(list(self.held))
        self.peer.send(ConsumerHeartbeat(self.name, token, 1))
        self.peer.send(ReclaimExpired(self.name, 1, 0, 1, 9, 0))
        self.held[token] = []
        self.join()
        if len(self.held) > 2:
            del self.held[token]

    def redrive(self):
        dead = self.peer.send(ListDeadLetters(self.name, "", 6)).dead_letters
        ids = tuple(each.message.id for each in dead if "/" in each.message.id)
        if ids:
            self.peer.send(self.by.choice((Redrive, Purge))(self.name, ids))

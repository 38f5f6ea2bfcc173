"""What the lease scripts mean, written down a second time in Python, as plainly as possible.

Owns the model that hypothesis compares the real scripts with. It shares no code with them.
"""

from dataclasses import dataclass, field, replace

TTL_MS, GRACE_MS, SETTLE_MS = 60_000, 30_000, 90_000
LONG_AGO = 10**9


@dataclass(frozen=True)
class Record:
    """A lease as the server keeps it; times in its milliseconds."""

    token: str
    owner: str
    fence: int
    state: str
    granted: int
    renewed: int
    deadline: int
    claimable: int
    target: str = ""
    target_until: int = 0


@dataclass
class Model:
    """One sweep on one server."""

    now: int
    epoch: int | None = None
    counter: int = 0
    records: dict[str, Record] = field(default_factory=dict)
    finished: dict[str, str] = field(default_factory=dict)
    void: set[str] = field(default_factory=set)

    def wipe(self) -> None:
        """FLUSHALL."""
        self.epoch, self.counter = None, 0
        self.records, self.finished, self.void = {}, {}, set()

    def _look(self) -> None:
        if self.epoch is None or self.epoch > self.now:
            self.epoch = self.now

    def acquire(
        self, run: str, token: str, owner: str, *, resume: bool, hint: int, late: bool
    ) -> tuple[object, ...]:
        """The kind of the answer and its data."""
        self._look()
        if token in self.void:
            return ("void",)
        if late:
            return ("late",)
        record = self.records.get(run)
        if record and record.token == token and record.state == "held":
            self.records[run] = self._extended(record)
            return ("granted", record.fence, "again")
        if run in self.finished:
            return ("finished", self.finished[run])
        refusal = self._refusal(run, owner, resume=resume)
        if refusal:
            return refusal
        record = self.records.get(run)
        fence = max(max(self.counter, record.fence if record else 0, hint) + 1, self.now)
        why = "takeover" if record and record.state != "released" else "claim"
        self.counter = max(self.counter, fence)
        fresh = Record(token, owner, fence, "held", self.now, 0, 0, 0)
        self.records[run] = self._extended(fresh)
        return ("granted", fence, why)

    def _refusal(self, run: str, owner: str, *, resume: bool) -> tuple[object, ...] | None:
        assert self.epoch is not None
        record = self.records.get(run)
        if record is None:
            left = self.epoch + SETTLE_MS - self.now
            return ("not_yet", left) if resume and left > 0 else None
        latest = self.now + TTL_MS + GRACE_MS
        record = replace(
            record,
            deadline=min(record.deadline, self.now + TTL_MS),
            claimable=min(record.claimable, latest),
            target_until=min(record.target_until, latest + TTL_MS),
        )
        self.records[run] = record
        if record.state != "released" and self.now < record.claimable:
            ages = (self._age(record.granted), self._age(record.renewed))
            return ("held", record.owner, record.fence, *ages, record.claimable - self.now)
        if record.target and record.target != owner and record.target_until > self.now:
            return ("not_yet", record.target_until - self.now)
        return None

    def _age(self, time: int) -> int:
        age = self.now - time
        return self.now if age < -1000 else max(age, 0)

    def _extended(self, record: Record) -> Record:
        deadline = self.now + TTL_MS
        return replace(record, renewed=self.now, deadline=deadline, claimable=deadline + GRACE_MS)

    def renew(self, run: str, token: str, owner: str, fence: int) -> tuple[object, ...]:
        """Status and fence."""
        self._look()
        record = self.records.get(run)
        mine = record is not None and record.token == token
        if record is not None and not mine and record.fence >= fence:
            return ("taken", record.fence)
        if not mine:
            if token in self.void:
                return ("released", fence)
            self.counter = max(self.counter, fence)
            self.records[run] = self._extended(Record(token, owner, fence, "held", 0, 0, 0, 0))
            return ("reasserted", fence)
        assert record is not None
        if record.state != "held":
            return (record.state, record.fence)
        self.records[run] = self._extended(record)
        return ("ok", record.fence)

    def release(self, run: str, token: str, owner: str, fence: int, outcome: str) -> str:
        """The status."""
        self._look()
        if token in self.void:
            return "again"
        self.void.add(token)
        self.counter = max(self.counter, fence)
        record = self.records.get(run)
        if record and record.token == token:
            if record.state != "released":
                self.records[run] = replace(record, state="released", claimable=self.now)
            self._conclude(run, owner, outcome)
            return "released"
        if record and record.state != "released":
            return "not_yours"
        if record is None or record.fence < fence:
            self._conclude(run, owner, outcome)
        return "absent"

    def _conclude(self, run: str, owner: str, outcome: str) -> None:
        if outcome == "finished":
            self.finished[run] = owner
        elif outcome:
            self.finished.pop(run, None)

    def steal(self, run: str, fence: int, after: int, target: str) -> tuple[object, ...]:
        """Status and fence."""
        self._look()
        record = self.records.get(run)
        if record is None:
            return ("missing", 0)
        if record.fence != fence:
            return ("changed", record.fence)
        if record.state == "held":
            claimable = min(record.claimable, self.now + after)
            until = claimable + TTL_MS if target else 0
            self.records[run] = replace(
                record, state="freed", claimable=claimable, target=target, target_until=until
            )
        return ("freed" if record.state != "released" else "released", record.fence)

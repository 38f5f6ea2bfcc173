"""Names of the keys of one sweep. docs/leases.md lists them.

Owns the schema version and the hash tag that keeps all keys of a sweep on one node of a cluster.
It must never touch Redis.
"""

from dataclasses import dataclass

from coordinator.core.model import SweepPath

SCHEMA_VERSION = 1
"""Part of every key: a new layout never meets records of an older one."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Every key is `wandb-coordinator:VERSION:{entity/project/sweep}:name`."""

    sweep: SweepPath

    @property
    def prefix(self) -> str:
        """What all keys of the sweep begin with; an ACL can grant `~PREFIX*`."""
        return f"wandb-coordinator:{SCHEMA_VERSION}:{{{self.sweep}}}:"

    def lease(self, run_id: str) -> str:
        """Hash: who holds the run, since when and until when."""
        return f"{self.lease_prefix}{run_id}"

    @property
    def lease_prefix(self) -> str:
        """`list.lua` finds the records below it."""
        return f"{self.prefix}lease:"

    def run(self, run_id: str) -> str:
        """Hash: the run's program, arguments, attempts and last outcome (the run registry)."""
        return f"{self.prefix}run:{run_id}"

    def void(self, token: str) -> str:
        """Present for a while after a token's release: no delayed request can revive it."""
        return f"{self.prefix}void:{token}"

    @property
    def fence(self) -> str:
        """Counter: the highest fencing token given out."""
        return f"{self.prefix}fence"

    @property
    def index(self) -> str:
        """Sorted set of run IDs by deadline, so that nothing ever scans."""
        return f"{self.prefix}index"

    @property
    def stream(self) -> str:
        """Bounded stream of what happened to leases. Older nodes wake their claims by it."""
        return f"{self.prefix}stream"

    @property
    def epoch(self) -> str:
        """Server time of the first use since the data were last lost."""
        return f"{self.prefix}epoch"

    @property
    def nodes(self) -> str:
        """Sorted set of node names by the time they were last seen."""
        return f"{self.prefix}nodes"

    def node(self, name: str) -> str:
        """Hash: what a node says of itself."""
        return f"{self.prefix}node:{name}"

    @property
    def rescue(self) -> str:
        """Queue of runs that are to run again without the server's doing ."""
        return f"{self.prefix}rescue"

    @property
    def sweep_state(self) -> str:
        """Hash: who changes the state of the sweep itself now, and how a person ended it."""
        return f"{self.prefix}sweep"

    @property
    def breaker(self) -> str:
        """Hash: the circuit breaker that the nodes share."""
        return f"{self.prefix}breaker"

    @property
    def pace(self) -> str:
        """When the nodes' questions for work will have used up nothing of their burst."""
        return f"{self.prefix}pace"

    @property
    def turn(self) -> str:
        """The last turn that was told to a node whose question for work had to wait."""
        return f"{self.prefix}turn"

    @property
    def idle(self) -> str:
        """Sorted set of nodes that rest between two questions for work, by the end of the rest."""
        return f"{self.prefix}idle"

    def wake(self, name: str) -> str:
        """Bounded stream: runs for which claims of that node wait, when their lease has ended; ''
        when the server has a run again."""
        return f"{self.wake_prefix}{name}"

    @property
    def wake_prefix(self) -> str:
        """Who ends a lease finds the streams of those who wait below it."""
        return f"{self.prefix}wake:"

"""The trainings that live on this node, by slot: the one list of them.

Owns who is on it. Slots put their training on it and take it off again; everybody else looks.
"""

from coordinator.supervisor.training import Training


class Trainings:
    """See the module."""

    def __init__(self) -> None:
        self._by_slot: dict[int, Training] = {}

    def put(self, training: Training) -> None:
        """It lives, in its slot."""
        self._by_slot[training.slot] = training

    def remove(self, training: Training) -> None:
        """Its tree is gone, or it never began."""
        del self._by_slot[training.slot]

    def of_slot(self, number: int) -> Training | None:
        """The training in a slot."""
        return self._by_slot.get(number)

    def of_lease(self, token: str) -> Training | None:
        """The training under a lease."""
        found = (one for one in self._by_slot.values() if one.lease.token == token)
        return next(found, None)

    def all(self) -> list[Training]:
        """All of them, by slot."""
        return [self._by_slot[number] for number in sorted(self._by_slot)]

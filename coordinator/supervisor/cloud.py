"""What the node does about a notice of its cloud.

Owns the carrying out; `core.cloud` decides. A machine that a cloud takes away is treated as by
`coordinatorctl preempt`: the daemon lives on, drained, since such notices can be taken back.
"""

import structlog

from coordinator.core.cloud import CloudNotice, Response, grace, respond
from coordinator.supervisor.pool import Pool

log = structlog.get_logger()


class CloudNotices:
    """See the module."""

    def __init__(self, pool: Pool, on_risk: Response) -> None:
        self._pool = pool
        self._on_risk = on_risk

    async def heed(self, notice: CloudNotice) -> None:
        """Do what has to be done; returns, after a preemption, when the last tree is gone."""
        response = respond(notice, self._on_risk)
        deadline = notice.deadline.isoformat() if notice.deadline else None
        log.warning("notice_received", source=notice.cloud.value, notice=notice.word,
                    deadline=deadline, step=response.value)  # fmt: skip
        match response:
            case Response.PREEMPT:
                settings = self._pool.settings
                self._pool.preempt_all(
                    settings.preempt_signal, grace(notice, settings.grace_seconds)
                )
                while not self._pool.is_idle:
                    await self._pool.services.changed.wait()
            case Response.DRAIN:
                self._pool.leave()
            case Response.IGNORE:
                pass

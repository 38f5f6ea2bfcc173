"""EC2: interruption notices and rebalance recommendations, by IMDSv2.

Owns the session token. Source: EC2 User Guide, "Use the Instance Metadata Service" (the token, its
headers, at most six hours) and "Spot Instance interruption notices" (404 while there is none, poll
every five seconds).
"""

from time import monotonic

from coordinator.core.cloud import ec2_instance_action, ec2_rebalance
from coordinator.notices.metadata import (
    NOT_FOUND,
    UNAUTHORIZED,
    Document,
    NoDocumentError,
    Source,
)

POLL_SECONDS = 5.0
TOKEN_SECONDS = 21600
TOKEN = "/latest/api/token"  # noqa: S105 - a path
INSTANCE_ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


async def watch_ec2(source: Source) -> None:
    """Watch for notices until cancelled."""
    await source.watch(_Ec2(source).poll, POLL_SECONDS)


class _Ec2:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._token = ""
        self._renew_at = 0.0

    async def poll(self) -> None:
        action = await self._document(INSTANCE_ACTION)
        if action.found:
            self._source.tell(ec2_instance_action(action.body, action.now))
        rebalance = await self._document(REBALANCE)
        if rebalance.found:
            self._source.tell(ec2_rebalance(rebalance.body))

    async def _document(self, path: str) -> Document:
        """The document at `path`, with a new token if the old one is no longer accepted."""
        if monotonic() >= self._renew_at:
            await self._fetch_token()
        answer = await self._source.ask(path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == UNAUTHORIZED:
            await self._fetch_token()
            answer = await self._source.ask(path, {"X-aws-ec2-metadata-token": self._token})
        if answer.status == UNAUTHORIZED:
            raise NoDocumentError(f"HTTP {UNAUTHORIZED} with a new token")
        return answer

    async def _fetch_token(self) -> None:
        wanted = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        answer = await self._source.ask(TOKEN, wanted, method="PUT")
        if answer.status in {UNAUTHORIZED, NOT_FOUND}:
            raise NoDocumentError(f"HTTP {answer.status} for a token: is this EC2?")
        self._token = answer.text
        self._renew_at = monotonic() + TOKEN_SECONDS / 2

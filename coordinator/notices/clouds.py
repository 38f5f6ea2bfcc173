"""Starts the watchers of the configured clouds; sends no other requests."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

import aiohttp
import anyio

from coordinator.config.model import Preemption
from coordinator.core.cloud import Cloud
from coordinator.notices.azure import watch_azure
from coordinator.notices.ec2 import watch_ec2
from coordinator.notices.gce import watch_gce
from coordinator.notices.metadata import Heed, Source

LINK_LOCAL = "http://169.254.169.254"


async def watch_clouds(settings: Preemption, environ: Mapping[str, str], heed: Heed) -> None:
    """Call `heed` with each new notice until cancelled."""
    watchers: dict[Cloud, Callable[[Source], Coroutine[Any, Any, None]]] = {
        Cloud.EC2: watch_ec2,
        Cloud.GCE: watch_gce,
        Cloud.AZURE: partial(watch_azure, acknowledge=settings.acknowledge),
    }
    if not settings.notices:
        return
    async with aiohttp.ClientSession() as session, anyio.create_task_group() as group:
        for cloud in dict.fromkeys(settings.notices):
            url = endpoint(cloud, settings.endpoints, environ)
            group.start_soon(watchers[cloud], Source(cloud, url, session, group, heed))


def endpoint(cloud: Cloud, configured: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Address of the service: configured, from a variable of the vendor's tools, or the default.

    Source: AWS SDKs and Tools Reference, AWS_EC2_METADATA_SERVICE_ENDPOINT; google-auth,
    GCE_METADATA_HOST. Azure has no such variable for its machines.
    """
    if cloud in configured:
        return configured[cloud]
    if cloud is Cloud.EC2:
        return environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or LINK_LOCAL
    if cloud is Cloud.GCE:
        return f"http://{environ.get('GCE_METADATA_HOST') or 'metadata.google.internal'}"
    return LINK_LOCAL

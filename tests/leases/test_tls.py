"""rediss:// against a real server with a certificate made for the test."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from coordinator.core.model import Outcome, SweepPath
from coordinator.errors import ConfigError, UserError
from coordinator.leases import LeaseKeeper
from tests.leases.nodes import FAST, claim, node
from tests.support.redis import free_port, redis_server

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates"),
]


async def openssl(*command: str | Path) -> None:
    await anyio.run_process(["openssl", *map(str, command)])


@pytest.fixture(scope="module")
async def authority(anyio_backend: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ca.pem, and server.pem for 127.0.0.1 that it has signed."""
    del anyio_backend
    at = tmp_path_factory.mktemp("ca")
    new = ("-newkey", "rsa:2048", "-nodes")
    await openssl(
        *("req", "-x509", *new, "-days", "2", "-subj", "/CN=test authority"),
        *("-keyout", at / "ca.key", "-out", at / "ca.pem"),
    )
    request = ("-keyout", at / "server.key", "-out", at / "server.csr", "-subj", "/CN=redis")
    await openssl("req", *new, *request)
    (at / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    await openssl(
        *("x509", "-req", "-days", "2", "-in", at / "server.csr", "-out", at / "server.pem"),
        *("-CA", at / "ca.pem", "-CAkey", at / "ca.key", "-CAcreateserial"),
        *("-extfile", at / "names"),
    )
    return at


@pytest.fixture(scope="module")
async def port(authority: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """Of a server with a password that speaks TLS only."""
    chosen = free_port()
    options = ["--tls-port", str(chosen), "--tls-auth-clients", "optional", "--bind", "127.0.0.1"]
    options += ["--tls-cert-file", str(authority / "server.pem")]
    options += ["--tls-key-file", str(authority / "server.key")]
    options += ["--tls-ca-cert-file", str(authority / "ca.pem"), "--requirepass", "s3cret"]
    async with redis_server(tmp_path_factory.mktemp("t"), *options):
        yield chosen


@pytest.mark.parametrize("option", ["ssl_ca_certs={ca}", "ssl_cert_reqs=none"])
async def test_a_lease_is_held_over_tls(
    option: str, port: int, authority: Path, sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"rediss://:s3cret@127.0.0.1:{port}?{option.format(ca=authority / 'ca.pem')}"
    async with node(url, sweep, tmp_path) as a:
        lease = await a.held(claim("r1"))
        await a.keeper.release(lease.token, Outcome.FAILED)
        assert a.journalled() == set()


async def test_a_certificate_that_nobody_trusts_is_said_in_one_line(
    port: int, sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"rediss://:s3cret@127.0.0.1:{port}"
    with anyio.fail_after(20), pytest.raises(UserError, match="is not trusted") as caught:
        await LeaseKeeper(url, sweep, "n", FAST, tmp_path).run()
    assert "ssl_ca_certs" in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_certificate_for_another_host_is_said_in_one_line(
    port: int, authority: Path, sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"rediss://:s3cret@localhost:{port}?ssl_ca_certs={authority / 'ca.pem'}"
    with anyio.fail_after(20), pytest.raises(UserError, match="localhost"):
        await LeaseKeeper(url, sweep, "n", FAST, tmp_path).run()


def test_an_authority_that_cannot_be_read_is_said_in_one_line(
    sweep: SweepPath, tmp_path: Path
) -> None:
    url = f"rediss://h?ssl_ca_certs={tmp_path / 'none.pem'}"
    with pytest.raises(ConfigError, match=r"none\.pem cannot be read"):
        LeaseKeeper(url, sweep, "n", FAST, tmp_path)

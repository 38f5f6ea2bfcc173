"""Finds the W&B server and the API key where wandb looks for them.

Order, as in wandb: WANDB_BASE_URL, then `base_url` in the settings files (workdir/wandb/settings
over ~/.config/wandb/settings), then the public cloud; WANDB_API_KEY, then the netrc file under the
host's name. Keeps no secret longer than needed and never logs one.
"""

import configparser
import netrc
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from coordinator.errors import UserError

PUBLIC_CLOUD = "https://api.wandb.ai"


class NoApiKeyError(UserError):
    """no API key for HOST: set WANDB_API_KEY or run `wandb login --host URL`"""

    def __init__(self, base_url: str) -> None:
        login = "wandb login" if base_url == PUBLIC_CLOUD else f"wandb login --host {base_url}"
        super().__init__(
            f"no W&B API key for {urlsplit(base_url).hostname}: set WANDB_API_KEY or run `{login}`"
        )


class BadBaseUrlError(UserError):
    """WANDB_BASE_URL is not an http address"""

    def __init__(self, base_url: str) -> None:
        super().__init__(
            f"WANDB_BASE_URL: {base_url!r} is not an http:// or https:// address; "
            f"unset it to use {PUBLIC_CLOUD}"
        )


@dataclass(frozen=True, slots=True)
class Login:
    """The W&B server and the credentials for it."""

    base_url: str
    """Without a trailing slash."""
    api_key: str = field(repr=False)
    key_from_environment: bool
    """True if trainings find the key in WANDB_API_KEY by themselves."""


def find_login(environ: Mapping[str, str], workdir: Path) -> Login:
    """Find it. Reads files, so call it before the loop runs or in a thread.

    Raises NoApiKeyError, BadBaseUrlError.
    """
    base_url = (environ.get("WANDB_BASE_URL") or _from_settings(environ, workdir)).rstrip("/")
    try:
        parts = urlsplit(base_url)
    except ValueError as error:
        raise BadBaseUrlError(base_url) from error
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise BadBaseUrlError(base_url)
    if key := environ.get("WANDB_API_KEY", "").strip():
        return Login(base_url, key, key_from_environment=True)
    found = _from_netrc(environ, parts.hostname)
    if not found:
        raise NoApiKeyError(base_url)
    return Login(base_url, found, key_from_environment=False)


def proxy_for(base_url: str, environ: Mapping[str, str]) -> str | None:
    """The HTTP proxy that the environment names for W&B, as curl and requests read it.

    Only the proxy: credentials from netrc must never be added to what agents send.
    """
    parts = urlsplit(base_url)
    named = {name.lower(): value for name, value in environ.items()}
    exempt = {"no": named.get("no_proxy", "")}
    if parts.hostname is None or proxy_bypass_environment(parts.netloc, exempt):
        return None
    return named.get(f"{parts.scheme}_proxy") or named.get("all_proxy") or None


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path("~").expanduser()


def _from_settings(environ: Mapping[str, str], workdir: Path) -> str:
    config = environ.get("WANDB_CONFIG_DIR") or _home(environ) / ".config" / "wandb"
    parser = configparser.ConfigParser(interpolation=None)
    for folder in (Path(config), workdir / "wandb"):
        with suppress(configparser.Error, OSError, UnicodeDecodeError):
            parser.read(folder / "settings", encoding="utf-8")
    return parser.get("default", "base_url", fallback="") or PUBLIC_CLOUD


def _from_netrc(environ: Mapping[str, str], host: str) -> str:
    home = _home(environ)
    named = environ.get("NETRC")
    for path in [Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        with suppress(OSError, netrc.NetrcParseError, UnicodeDecodeError):
            entry = netrc.netrc(path).authenticators(host)
            if entry and entry[2]:
                return entry[2]
    return ""

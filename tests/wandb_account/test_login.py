"""Where W&B and the key are found, in wandb's own order, and what is said when they are not."""

from pathlib import Path

import pytest

from coordinator.errors import UserError
from coordinator.wandb_account import Login, find_login, proxy_for
from coordinator.wandb_account.login import PUBLIC_CLOUD, BadBaseUrlError, NoApiKeyError

KEY = "0123456789" * 4
OTHER_KEY = "abcdefghij" * 4


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory with nothing in it."""
    path = tmp_path / "home"
    path.mkdir()
    return path


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A directory in which trainings run."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def netrc(path: Path, **keys: str) -> Path:
    lines = [f"machine {host.replace('_', '.')} login user password {keys[host]}" for host in keys]
    path.write_text("\n".join(lines) + "\n")
    return path


def settings(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "settings").write_text(text)


def find(workdir: Path, home: Path, **environ: str) -> Login:
    return find_login({"HOME": str(home), **environ}, workdir)


# --- the key --------------------------------------------------------------------------------------
def test_a_key_in_the_environment_overrides_every_file(workdir: Path, home: Path) -> None:
    netrc(home / ".netrc", api_wandb_ai=OTHER_KEY)
    login = find(workdir, home, WANDB_API_KEY=f" {KEY}\n")
    assert login == Login(PUBLIC_CLOUD, KEY, key_from_environment=True)


@pytest.mark.parametrize("name", [".netrc", "_netrc"])
def test_without_one_the_netrc_file_of_the_user_has_it(
    name: str, workdir: Path, home: Path
) -> None:
    netrc(home / name, example_com=OTHER_KEY, api_wandb_ai=KEY)
    assert find(workdir, home) == Login(PUBLIC_CLOUD, KEY, key_from_environment=False)


def test_a_netrc_file_that_is_named_in_the_environment_is_the_only_one(
    tmp_path: Path, workdir: Path, home: Path
) -> None:
    netrc(home / ".netrc", api_wandb_ai=OTHER_KEY)
    named = netrc(tmp_path / "named", api_wandb_ai=KEY)
    assert find(workdir, home, NETRC=str(named)).api_key == KEY
    with pytest.raises(NoApiKeyError):
        find(workdir, home, NETRC=str(tmp_path / "absent"))


def test_the_key_is_that_of_the_host_that_is_used(workdir: Path, home: Path) -> None:
    netrc(home / ".netrc", api_wandb_ai=OTHER_KEY, wandb_example_com=KEY)
    login = find(workdir, home, WANDB_BASE_URL="https://wandb.example.com:8443/base/")
    assert (login.base_url, login.api_key) == ("https://wandb.example.com:8443/base", KEY)


@pytest.mark.parametrize("damage", ["machine", "\x00\xff", "machine api.wandb.ai login"])
def test_a_damaged_netrc_file_is_as_good_as_none(damage: str, workdir: Path, home: Path) -> None:
    (home / ".netrc").write_text(damage, encoding="latin-1")
    with pytest.raises(NoApiKeyError):
        find(workdir, home)


# --- the server -----------------------------------------------------------------------------------
def test_the_server_is_the_public_cloud_unless_configured_otherwise(
    workdir: Path, home: Path
) -> None:
    assert find(workdir, home, WANDB_API_KEY=KEY).base_url == PUBLIC_CLOUD


def test_directory_settings_override_user_settings_and_the_environment_overrides_both(
    workdir: Path, home: Path
) -> None:
    settings(home / ".config" / "wandb", "[default]\nbase_url = https://user.example.com/\n")
    assert find(workdir, home, WANDB_API_KEY=KEY).base_url == "https://user.example.com"
    settings(workdir / "wandb", "[default]\nbase_url = https://work.example.com\n")
    assert find(workdir, home, WANDB_API_KEY=KEY).base_url == "https://work.example.com"
    url = "http://127.0.0.1:8080"
    assert find(workdir, home, WANDB_API_KEY=KEY, WANDB_BASE_URL=url).base_url == url


def test_the_users_settings_may_lie_elsewhere(tmp_path: Path, workdir: Path, home: Path) -> None:
    settings(tmp_path / "conf", "[default]\nbase_url = https://conf.example.com\n")
    login = find(workdir, home, WANDB_API_KEY=KEY, WANDB_CONFIG_DIR=str(tmp_path / "conf"))
    assert login.base_url == "https://conf.example.com"


@pytest.mark.parametrize(
    "text", ["", "[default]\n", "[default]\nbase_url =\n", "no section", "[other]\nbase_url = x\n",
             "[default]\nentity = 50%\n", "\x00"],
)  # fmt: skip
def test_settings_without_an_address_change_nothing(text: str, workdir: Path, home: Path) -> None:
    settings(workdir / "wandb", text)
    assert find(workdir, home, WANDB_API_KEY=KEY).base_url == PUBLIC_CLOUD


# --- what goes wrong ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "url",
    ["api.wandb.ai", "ftp://api.wandb.ai", "https://", "file:///x", "http://[bad", "https:/x"],
)
def test_an_address_that_is_none_is_refused_in_one_line(
    url: str, workdir: Path, home: Path
) -> None:
    with pytest.raises(BadBaseUrlError) as caught:
        find(workdir, home, WANDB_API_KEY=KEY, WANDB_BASE_URL=url)
    assert isinstance(caught.value, UserError)
    assert "\n" not in str(caught.value)
    assert repr(url.rstrip("/")) in str(caught.value)


@pytest.mark.parametrize(
    ("url", "host", "command"),
    [
        (PUBLIC_CLOUD, "api.wandb.ai", "`wandb login`"),
        ("http://box:8080", "box", "`wandb login --host http://box:8080`"),
    ],
)
def test_a_missing_key_is_reported_in_one_line_with_the_command_that_helps(
    url: str, host: str, command: str, workdir: Path, home: Path
) -> None:
    with pytest.raises(NoApiKeyError) as caught:
        find(workdir, home, WANDB_BASE_URL=url)
    assert str(caught.value) == (f"no W&B API key for {host}: set WANDB_API_KEY or run {command}")
    assert caught.value.exit_code == 2


def test_a_key_is_never_printed_with_its_login(workdir: Path, home: Path) -> None:
    assert KEY not in repr(find(workdir, home, WANDB_API_KEY=KEY))


# --- the proxy ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("url", "environ", "proxy"),
    [
        ("https://api.wandb.ai", {}, None),
        ("https://api.wandb.ai", {"https_proxy": "http://p:1"}, "http://p:1"),
        ("https://api.wandb.ai", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.wandb.ai", {"http_proxy": "http://p:1"}, None),
        ("http://box:8080", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("http://box:8080", {"ALL_PROXY": "http://p:1"}, "http://p:1"),
        ("http://box:8080", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "box"}, None),
        ("http://box:8080", {"HTTP_PROXY": "http://p:1", "no_proxy": "*"}, None),
        ("http://a.corp", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "x,.corp"}, None),
        ("http://box:8080", {"HTTP_PROXY": "http://p:1", "NO_PROXY": "other"}, "http://p:1"),
        ("https://api.wandb.ai", {"https_proxy": ""}, None),
    ],
)
def test_a_proxy_of_the_environment_is_used_unless_the_host_is_exempt(
    url: str, environ: dict[str, str], proxy: str | None
) -> None:
    assert proxy_for(url, environ) == proxy

"""Secrets never reach an event."""

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from coordinator.telemetry.redact import REDACTED, Redactor
from tests.telemetry.conftest import Pipeline

log = structlog.get_logger()
SECRET = "0123456789abcdef0123456789abcdef01234567"  # the form of a W&B key, and nobody's


@pytest.mark.parametrize(
    "key", ["api_key", "WANDB_API_KEY", "apiKey", "password", "agent_token", "client_secret"]
)
def test_a_field_with_a_telling_name_is_redacted(key: str) -> None:
    assert Redactor().field(key, "x y z") == REDACTED
    assert Redactor().field("outer", {key: ["x"]}) == {key: REDACTED}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://user:pa55@host:1/0", "redis://[redacted]@host:1/0"),
        ("redis://:pa55@host", "redis://[redacted]@host"),
        (
            "no redis://:a@b and https://c:d@e/f",
            "no redis://[redacted]@b and https://[redacted]@e/f",
        ),
        ("http://127.0.0.1:9/a/Zm9vYmFyYmF6/graphql", "http://127.0.0.1:9/a/[redacted]/graphql"),
        ("Authorization: Basic YXBpOmtleQ==", "Authorization: [redacted]"),
        ("{'Authorization': 'Digest a=1 b=2'}", "{'Authorization': '[redacted]'}"),
        ("sent Bearer abcdefgh.ijk", "sent Bearer [redacted]"),
        ("x?access_token=abc&y=1", "x?access_token=[redacted]&y=1"),
        ('{"password": "abc", "n": 1}', '{"password": "[redacted]", "n": 1}'),
        ("WANDB_API_KEY=abc python train.py", "WANDB_API_KEY=[redacted] python train.py"),
        ("https://api.wandb.ai/e/p/sweeps/s", "https://api.wandb.ai/e/p/sweeps/s"),
        ("mail a@b.org about slot 1", "mail a@b.org about slot 1"),
        ("/data/a/b", "/data/a/b"),
    ],
)
def test_what_looks_like_a_secret_is_redacted_and_the_rest_stays(text: str, shown: str) -> None:
    assert Redactor().text(text) == shown


def test_a_registered_secret_is_redacted_everywhere(pipeline: Pipeline) -> None:
    pipeline.telemetry.register_secret(SECRET)
    pipeline.telemetry.register_secret("pass/wörd+1")
    try:
        raise RuntimeError(f"login {SECRET} refused")
    except RuntimeError:
        log.exception(
            "login_failed", argv=["--key", SECRET], url="http://h/?p=pass%2Fw%C3%B6rd%2B1"
        )
    (event,) = pipeline.events()
    assert event["argv"] == ["--key", REDACTED]
    assert event["url"] == f"http://h/?p={REDACTED}"
    assert f"login {REDACTED} refused" in event["exception"]
    for sink in (pipeline.file.read_text(), pipeline.console.getvalue()):
        assert SECRET not in sink
        assert REDACTED in sink


def test_a_secret_that_contains_another_leaves_nothing_behind() -> None:
    redactor = Redactor()
    redactor.register("hunter")
    redactor.register("hunter2000")
    assert redactor.text("it is hunter2000") == f"it is {REDACTED}"


def test_a_secret_too_short_to_tell_apart_is_ignored() -> None:
    redactor = Redactor()
    redactor.register("a")
    assert redactor.text("a cat") == "a cat"


def test_numbers_and_flags_stay_even_with_a_telling_name() -> None:
    assert Redactor().field("token_count", 3) == 3


@given(st.text(), st.text(alphabet="abc/@:=&? \"'", max_size=40))
def test_text_is_redacted_without_error_and_only_once(one: str, two: str) -> None:
    redactor = Redactor()
    shown = redactor.text(one + two)
    assert redactor.text(shown) == shown

"""Where clients of AWS send to is looked at before the first request."""

from contextlib import ExitStack

import pytest

from darkroom.runtime.s3 import aws_client, aws_session
from darkroom.runtime.settings import load
from darkroom.runtime.start import StartRefused
from notifier.app import _channels
from notifier.settings import Settings

NO_ENDPOINTS = ["nonsense", "https://", "http://a:99999", "http://a;b", "ftp://a", "http://me:hunter2@a", "http://a/?b"]


@pytest.fixture(autouse=True)
def _on_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL_SESV2", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"REGION": "eu-north-1", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_SQS"])
@pytest.mark.parametrize("endpoint", NO_ENDPOINTS)
def test_an_endpoint_that_is_none_ends_the_start(monkeypatch: pytest.MonkeyPatch, variable: str, endpoint: str) -> None:
    monkeypatch.setenv(variable, endpoint)
    with pytest.raises(StartRefused, match=r"No SQS client can be made \(AWS_ENDPOINT_URL, AWS_REGION\)") as refused:
        aws_client(aws_session(), "sqs")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:4566", "http://aws:4566"])
def test_one_that_can_be_sent_to_is_taken(monkeypatch: pytest.MonkeyPatch, endpoint: str | None) -> None:
    if endpoint is not None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    sent_to = aws_client(aws_session(), "sqs").meta.endpoint_url
    assert sent_to == (endpoint or "https://sqs.eu-north-1.amazonaws.com")


def test_mail_has_its_endpoint_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"MONGO_URL": "mongodb://m", "KAFKA_BOOTSTRAP": "k", "BUCKET": "pictures", "EMAIL_FROM": "a@example.org"}
    for name, value in given.items():
        monkeypatch.setenv(f"DARKROOM_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_SESV2", "http://a:99999")
    with ExitStack() as stack, pytest.raises(StartRefused, match="No SESV2 client can be made"):
        _channels(load(Settings), aws_session(), stack)

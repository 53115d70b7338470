"""A notifier that could tell nobody does not start."""

import pytest

from darkroom.runtime.settings import load
from notifier.settings import Settings

SECRET = "whsec_" + "QUJD" * 10
GOOD = {
    "DARKROOM_MONGO_URL": "mongodb://127.0.0.1",
    "DARKROOM_KAFKA_BOOTSTRAP": "127.0.0.1:9092",
    "DARKROOM_BUCKET": "bucket",
    "DARKROOM_WEBHOOK_URL": "https://example.com/hook",
    "DARKROOM_WEBHOOK_SECRET": SECRET,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in GOOD.items():
        monkeypatch.setenv(name, value)


def test_a_webhook_alone_is_enough() -> None:
    assert load(Settings).email_from is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"DARKROOM_WEBHOOK_URL": None}, "DARKROOM_EMAIL_FROM, DARKROOM_WEBHOOK_URL or both"),
        ({"DARKROOM_WEBHOOK_SECRET": None}, "DARKROOM_WEBHOOK_SECRET is not set"),
        ({"DARKROOM_WEBHOOK_SECRET": "whsec_!"}, "not base64"),
        ({"DARKROOM_WEBHOOK_SECRET": "whsec_QUJD"}, "has 3 bytes; must have 24 to 64"),
        ({"DARKROOM_EMAIL_TO": "nobody"}, "must be an e-mail address, or contain {owner_id}"),
        ({"DARKROOM_WEBHOOK_URL": "ftp://example.com"}, "neither http:// nor https://"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, str | None], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in change.items():
        if value is None:
            monkeypatch.delenv(name)
        else:
            monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=said.replace("{", r"\{")) as refused:
        load(Settings)
    assert SECRET not in str(refused.value)

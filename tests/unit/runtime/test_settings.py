"""What is wrong with the environment is said in one line a variable, and never with its value."""

import pytest

from darkroom.runtime.settings import KafkaSettings, MongoSettings, load


class Both(MongoSettings, KafkaSettings):
    """Two groups, as a service has them."""


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MONGO_URL", "MONGO_DATABASE", "KAFKA_BOOTSTRAP", "KAFKA_CONFIG", "TOPIC_PREFIX"):
        monkeypatch.delenv(f"DARKROOM_{name}", raising=False)


def test_settings_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_MONGO_URL", "mongodb://user:secret@host/?replicaSet=rs0")
    monkeypatch.setenv("DARKROOM_KAFKA_BOOTSTRAP", "host:9092")
    monkeypatch.setenv("DARKROOM_KAFKA_CONFIG", '{"security.protocol": "SSL"}')
    settings = load(Both)
    assert settings.mongo_url.get_secret_value().endswith("rs0")
    assert settings.kafka_config == {"security.protocol": "SSL"}
    assert "secret" not in repr(settings)


def test_each_missing_variable_is_named() -> None:
    with pytest.raises(SystemExit) as ended:
        load(Both)
    assert "DARKROOM_MONGO_URL" in str(ended.value)
    assert "DARKROOM_KAFKA_BOOTSTRAP" in str(ended.value)
    assert str(ended.value).count("not set") == 2


def test_what_is_no_json_is_named_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_MONGO_URL", "mongodb://host")
    monkeypatch.setenv("DARKROOM_KAFKA_BOOTSTRAP", "host:9092")
    monkeypatch.setenv("DARKROOM_KAFKA_CONFIG", '{"sasl.password": "hunter2"')
    with pytest.raises(SystemExit) as ended:
        load(Both)
    assert "kafka_config" in str(ended.value)
    assert "hunter2" not in str(ended.value)

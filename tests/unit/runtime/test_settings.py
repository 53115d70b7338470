"""What is wrong with the environment is said in one line a variable, and never with its value."""

import math
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError

from darkroom.runtime.settings import KafkaSettings, LifeSettings, MongoSettings, Origins, S3Settings, load
from support.configuration import PROGRAMS, Program, bounds, numbers


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


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_every_number_has_a_least_and_a_most(program: Program) -> None:
    for name, field in numbers(program.settings):
        least, most = bounds(field)
        assert least is not None, f"{name} has no least: what is only above 0 may be 1e-300"
        assert least <= 0 or least >= 0.001, f"{name} may be so small that no clock tells it from 0"
        assert most is not None, f"{name} has no most"
        told: TypeAdapter[float] = TypeAdapter(Annotated[field.annotation, *field.metadata])
        for wrong in (math.inf, -math.inf, 10**30, most + 1, least - 1):
            with pytest.raises(ValidationError):
                told.validate_python(wrong)


@pytest.mark.parametrize("value", ["inf", "nan", "1e300", "-1"])
def test_a_number_beyond_all_use_names_its_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DARKROOM_UPLOADING_HOURS", value)
    with pytest.raises(SystemExit, match="DARKROOM_UPLOADING_HOURS"):
        load(LifeSettings)


@pytest.mark.parametrize("name", ["a b", "ab", "Uploads", "-uploads", "uploads.", "u" * 64, "up/loads", "up\nloads"])
def test_a_name_that_no_bucket_has_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DARKROOM_BUCKET", name)
    with pytest.raises(SystemExit, match="DARKROOM_BUCKET"):
        load(S3Settings)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://a.example.com, http://localhost:8080,", ("https://a.example.com", "http://localhost:8080")),
        ("http://[::1]:8080", ("http://[::1]:8080",)),
    ],
)
def test_origins_are_read(given: str, read: tuple[str, ...]) -> None:
    assert TypeAdapter(Origins).validate_python(given) == read


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        ("https://a.example.com/", "write https://a.example.com"),
        ("https://a.example.com/page", "write https://a.example.com"),
        ("https://a.example.com:443", "write https://a.example.com"),
        ("HTTPS://A.example.com", "write https://a.example.com"),
        ("https://me:secret@a.example.com", "write https://a.example.com"),
        ("a.example.com", "with its scheme"),
        ("localhost:8080", "with its scheme"),
        ("ftp://a.example.com", "with its scheme"),
        ("https://", "with its scheme"),
        ("https://a.example.com:99999", "is no address"),
        ("null", "with its scheme"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_the_one_it_sends(given: str, instead: str) -> None:
    with pytest.raises(ValidationError, match=instead):
        TypeAdapter(Origins).validate_python(f"https://right.example.com,{given}")

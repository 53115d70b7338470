"""What is wrong with the environment is said in one line a variable, and never with its value."""

import math
from typing import Annotated

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic_settings import BaseSettings

import asset_api.settings
import notifier.settings
import s3_bridge.settings
from darkroom.cli import reconciler
from darkroom.ops import installation
from darkroom.runtime.settings import (
    BaseUrl,
    Bootstrap,
    HttpUrl,
    HttpUrlWithUserinfo,
    KafkaSettings,
    LifeSettings,
    MongoSettings,
    Origins,
    S3Settings,
    load,
)
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


SHELLS = (
    "capacitor://localhost",
    "ionic://localhost",
    "tauri://localhost",
    "chrome-extension://gcbommkclmclpchllfjekcdonpmejbdp",
    "moz-extension://2c127fa4-62c7-7e4f-90e5-472b45eecfdc",
)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ()),
        ("*", ("*",)),
        ("https://a.example.com, http://localhost:8080,", ("https://a.example.com", "http://localhost:8080")),
        ("http://[::1]:8080", ("http://[::1]:8080",)),
        ("http://127.0.0.1:3000,http://my_app", ("http://127.0.0.1:3000", "http://my_app")),
        ("https://xn--mnchen-3ya.de", ("https://xn--mnchen-3ya.de",)),
        ("http://[::ffff:102:304]", ("http://[::ffff:102:304]",)),
        *((shell, (shell,)) for shell in SHELLS),
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
        ("a.example.com", "does not begin with a scheme: write it as https://"),
        ("localhost:8080", "does not begin with a scheme"),
        ("ftp://a.example.com", "no page is shown from there"),
        ("https://", "has no host"),
        ("https://a.example.com:99999", "no port that is one"),
        ("https://a.example.com:0", "no port that is one"),
        ("https://a.example.com:", "no port that is one"),
        ("http://a.example.com:080", "write http://a.example.com"),
        ("null", "sandboxed"),
        ("file://", "browsers send null"),
        ("file:///home/me/page.html", "browsers send null"),
        ("https://*.example.com", "each one by its name"),
        ("https://münchen.de", "write https://xn--mnchen-3ya.de"),
        ("https://straße.de", "write https://xn--strae-oqa.de"),
        ("https://xn--99999999", "no host that is one"),
        ("http://[0:0::1]", r"write http://\[::1\]"),
        ("http://[::FFFF:1.2.3.4]", r"write http://\[::ffff:102:304\]"),
        ("http://[fe80::1%eth0]", "no IPv6 address"),
        ("http://[::1", "no IPv6 address"),
        ("http://127.1", "write http://127.0.0.1"),
        ("http://0x7f.0.0.1", "write http://127.0.0.1"),
        ("http://256.0.0.1", "no IPv4 address"),
        ("https://a.1", "no IPv4 address"),
        ("https://%41", "no host that is one"),
        ("https://a b", "has a blank"),
        ("https://.", "no host that is one"),
        ("https://a..example.com", "no host that is one"),
        ("https://a;b", "no host that is one"),
        ("https://-a.example.com", "no host that is one"),
        ("https://" + "a" * 64, "no host that is one"),
        ("https://" + "a." * 127 + "aa", "no host that is one"),
        ("capacitor://localhost/", "write capacitor://localhost"),
        ("capacitor://", "no host that is one"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused_with_the_one_it_sends(given: str, instead: str) -> None:
    with pytest.raises(ValidationError, match=instead):
        TypeAdapter(Origins).validate_python(f"https://right.example.com,{given}")


URLS = [
    (asset_api.settings.Settings, "JWKS_URL"),
    (asset_api.settings.Settings, "CLOUDFRONT_URL"),
    (asset_api.settings.Settings, "S3_PUBLIC_ENDPOINT_URL"),
    (s3_bridge.settings.PollerSettings, "QUEUE_URL"),
    (notifier.settings.Settings, "WEBHOOK_URL"),
    (installation.OpsSettings, "QUEUE_URL"),
    (installation.OpsSettings, "DLQ_URL"),
    (installation.OpsSettings, "HEALTH_URLS"),
]
NO_URLS = [
    ("https://", "has no host"),
    ("https:///keys", "has no host"),
    ("https://a b/", "has a blank or a control character"),
    ("https://a/\x07", "has a blank or a control character"),
    ("https://a:99999/", "no port that is one: write 1 to 65535"),
    ("https://a:0/", "no port that is one"),
    ("https://a:x/", "no port that is one"),
    ("https://a;b/", "no host that is one"),
    ("https://a\\b/", "no host that is one"),
    ("https://[::1/", "no IPv6 address"),
    ("https://*.example.com/", r"has a \* in its host"),
    ("file:///etc/passwd", "neither http:// nor https://"),
    ("file:/etc/passwd", "https://HOST"),
    ("ftp://example.com/", "neither http:// nor https://"),
    ("example.com/keys", "does not begin with a scheme"),
    ("https://example.com/keys#a", "what is behind that is never sent"),
]


def test_every_setting_that_is_a_url_is_tried() -> None:
    named = {
        (program.settings, name.upper())
        for program in PROGRAMS
        for name in program.settings.model_fields
        if name.endswith(("_url", "_urls")) and name != "mongo_url"
    }
    assert {name for _, name in named} == {name for _, name in URLS}
    assert {place for place in named if place[0] is not reconciler.ReconcilerSettings} == set(URLS)


@pytest.mark.parametrize(("url", "says"), NO_URLS)
@pytest.mark.parametrize(("settings", "name"), URLS, ids=lambda value: getattr(value, "__module__", value))
def test_what_cannot_be_asked_by_http_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, settings: type[BaseSettings], name: str, url: str, says: str
) -> None:
    monkeypatch.setenv(f"DARKROOM_{name}", url)
    with pytest.raises(SystemExit, match=rf"DARKROOM_{name} \(.*{says}") as refused:
        load(settings)
    assert url not in str(refused.value).replace("https://HOST", "")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:9000/readyz",
        "http://localhost:9000",
        "http://[::1]:9000/",
        "http://asset-api.darkroom.svc.cluster.local:9000/readyz",
        "http://outbox_relay:9000/readyz",
        "http://aws:4566/000000000000/darkroom-uploads",
        "HTTPS://ID.example.com./keys?set=1",
        "https://münchen.de/keys",
    ],
)
def test_what_can_be_asked_is_taken_as_it_is(url: str) -> None:
    assert TypeAdapter(HttpUrl).validate_python(url) == url


def test_name_and_password_stand_in_a_webhook_alone() -> None:
    given = "https://me:hunter2@example.com/hook"
    assert TypeAdapter(HttpUrlWithUserinfo).validate_python(given) == given
    for kind in (HttpUrl, BaseUrl):
        with pytest.raises(ValidationError, match="a name or a password before its host"):
            TypeAdapter(kind).validate_python(given)


def test_a_url_that_paths_are_put_behind_has_no_query() -> None:
    given = "https://cdn.example.com/?a=1"
    assert TypeAdapter(HttpUrl).validate_python(given) == given
    with pytest.raises(ValidationError, match="paths are put behind it"):
        TypeAdapter(BaseUrl).validate_python(given)


def test_the_one_address_of_several_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_HEALTH_URLS", "http://a/readyz,http://b:x/readyz")
    with pytest.raises(SystemExit, match=r"DARKROOM_HEALTH_URLS.*of address 2"):
        load(installation.OpsSettings)


@pytest.mark.parametrize(
    "servers",
    [
        "127.0.0.1:9092",
        "kafka",
        "kafka_1:9092,kafka-2.kafka.svc.cluster.local:9092",
        "b-1.darkroom.abc123.c2.kafka.eu-west-1.amazonaws.com:9098, [::1]:9092",
        "SASL_SSL://kafka:9093",
    ],
)
def test_kafkas_servers_are_taken_as_they_are(servers: str) -> None:
    assert TypeAdapter(Bootstrap).validate_python(servers) == servers


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ("kafka:99999", "of server 1: it has no port that is one"),
        ("kafka:9092,kafka:x", "of server 2: it has no port that is one"),
        ("a:1,,b:1", "of server 2: it has no host: write it as HOST:PORT"),
        ("a b:9092", "blank or a control character"),
        ("http://kafka:9092", "another protocol than Kafka's"),
        ("kafka:9092/topic", "more than a host and a port"),
        ("me:hunter2@kafka:9092", "more than a host and a port"),
        ("*:9092", r"has a \* in its host"),
    ],
)
def test_what_is_no_server_of_kafka_is_refused_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, servers: str, says: str
) -> None:
    monkeypatch.setenv("DARKROOM_KAFKA_BOOTSTRAP", servers)
    with pytest.raises(SystemExit, match=rf"DARKROOM_KAFKA_BOOTSTRAP \(.*{says}") as refused:
        load(KafkaSettings)
    assert "hunter2" not in str(refused.value)

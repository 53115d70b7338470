"""What a processor accepts from its environment."""

import pytest

from darkroom.runtime.settings import load
from processor.imaging.rendition import OutputFormat, RenditionSpec, default_specs
from processor.settings import Settings


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_MONGO_URL", "mongodb://user:secret@127.0.0.1/")
    monkeypatch.setenv("DARKROOM_KAFKA_BOOTSTRAP", "127.0.0.1:9092")
    monkeypatch.setenv("DARKROOM_BUCKET", "photos")


def test_three_variables_are_enough() -> None:
    settings = load(Settings)
    assert settings.renditions == default_specs()
    assert (settings.bucket, settings.group_protocol) == ("photos", "classic")
    assert settings.limits.max_pixels == 100_000_000
    assert "secret" not in repr(settings)


def test_renditions_are_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_RENDITIONS", '[{"name": "tiny", "box": [16, 16], "format": "webp", "quality": 70}]')
    assert load(Settings).renditions == (
        RenditionSpec(name="tiny", box=(16, 16), format=OutputFormat.WEBP, quality=70),
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RENDITIONS", '[{"name": "a", "box": [1, 1]}, {"name": "a", "box": [2, 2]}]', "name of its own"),
        ("RENDITIONS", '[{"name": "original", "box": [1, 1]}]', "none is called original"),
        ("RENDITIONS", '[{"name": "a", "box": [0, 1]}]', "box must be"),
        ("RENDITIONS", "[]", "DARKROOM_RENDITIONS"),
        ("GROUP_PROTOCOL", "eager", "DARKROOM_GROUP_PROTOCOL"),
        ("MAX_ATTEMPTS", "0", "DARKROOM_MAX_ATTEMPTS"),
        ("LEASE_SECONDS", "soon", "DARKROOM_LEASE_SECONDS"),
    ],
)
def test_a_wrong_value_is_told_by_its_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    monkeypatch.setenv(f"DARKROOM_{name}", value)
    with pytest.raises(SystemExit, match=says):
        load(Settings)


@pytest.mark.parametrize("value", ["../x", "a/b", "", "a b"])
def test_a_renditions_name_is_part_of_a_key_and_must_be_plain(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("DARKROOM_RENDITIONS", f'[{{"name": "{value}", "box": [1, 1]}}]')
    with pytest.raises(SystemExit, match="DARKROOM_RENDITIONS"):
        load(Settings)


def test_what_is_no_json_is_told_by_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARKROOM_RENDITIONS", "thumb")
    with pytest.raises(SystemExit, match="DARKROOM_RENDITIONS"):
        load(Settings)

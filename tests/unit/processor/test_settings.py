"""What a processor accepts from its environment."""

import pytest

from darkroom.life.rejected import RejectedOriginals
from darkroom.runtime.settings import load
from processor.classifier import OnFailure
from processor.imaging.rendition import Fit, Limits, OutputFormat, RenditionSpec, default_specs
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
    monkeypatch.setenv(
        "DARKROOM_RENDITIONS", '[{"name": "tiny", "box": [16, 16], "fit": "cover", "format": "avif", "quality": 70}]'
    )
    assert load(Settings).renditions == (
        RenditionSpec(name="tiny", box=(16, 16), fit=Fit.COVER, format=OutputFormat.AVIF, quality=70),
    )


def test_ceilings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("MAX_SIDE", 5000), ("MAX_FRAMES", 7), ("MAX_METADATA_BYTES", 1000), ("MAX_PIXELS", 10_000)):
        monkeypatch.setenv(f"DARKROOM_{name}", str(value))
    monkeypatch.setenv("DARKROOM_DECODE_MEMORY_BYTES", str(512 * 2**20))
    assert load(Settings).limits == Limits(
        max_pixels=10_000, max_side=5000, max_frames=7, max_metadata_bytes=1000, max_decode_bytes=320 * 2**20
    )


def test_the_policies_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Settings).rejected_originals is RejectedOriginals.TAG
    monkeypatch.setenv("DARKROOM_REJECTED_ORIGINALS", "delete")
    monkeypatch.setenv("DARKROOM_CLASSIFIER", "mine:classify")
    monkeypatch.setenv("DARKROOM_CLASSIFIER_ON_FAILURE", "retry")
    settings = load(Settings)
    assert (settings.rejected_originals, settings.classifier) == (RejectedOriginals.DELETE, "mine:classify")
    assert settings.classifier_on_failure is OnFailure.RETRY


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RENDITIONS", '[{"name": "a", "box": [1, 1]}, {"name": "a", "box": [2, 2]}]', "name of its own"),
        ("RENDITIONS", '[{"name": "original", "box": [1, 1]}]', "none is called original"),
        ("RENDITIONS", '[{"name": "a", "box": [0, 1]}]', "box must be"),
        ("RENDITIONS", '[{"name": "a", "box": [1, 1], "fit": "stretch"}]', "DARKROOM_RENDITIONS"),
        ("REJECTED_ORIGINALS", "burn", "DARKROOM_REJECTED_ORIGINALS"),
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

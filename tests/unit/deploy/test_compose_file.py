"""deploy/compose.yaml against what the services are; tests/containers runs it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic_settings import BaseSettings

import asset_api.settings
import notifier.settings
import outbox_relay.settings
import processor.settings
import s3_bridge.settings
from darkroom.life import app as life
from darkroom.runtime.settings import PREFIX
from darkroom.setup import prepare
from unit.deploy.operations import ReconcilerSettings, refused_options

FOLDER = Path(__file__).parents[3] / "deploy"
ALL: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))["services"]
OURS = {name: service for name, service in ALL.items() if service["image"].startswith("darkroom/")}
SETTINGS: dict[str, type[BaseSettings]] = {
    "prepare": prepare.Settings,
    "asset_api": asset_api.settings.Settings,
    "s3_bridge": s3_bridge.settings.PollerSettings,
    "processor": processor.settings.Settings,
    "outbox_relay": outbox_relay.settings.Settings,
    "sweeper": life.Settings,
    "reconciler": ReconcilerSettings,
    "notifier": notifier.settings.Settings,
}
SHARED = {"DARKROOM_BUCKET"}
"""Of the AWS group, which `prepare` gets as a whole: it makes the bucket."""


def test_every_service_is_there_and_only_the_notifier_waits_to_be_asked_for() -> None:
    assert OURS.keys() == SETTINGS.keys()
    assert {name: service["profiles"] for name, service in ALL.items() if "profiles" in service} == {
        "notifier": ["notifier"]
    }


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_is_told_settings_that_it_has_and_all_that_it_must_have(name: str) -> None:
    fields = SETTINGS[name].model_fields
    given = {variable for variable in OURS[name]["environment"] if variable.startswith(PREFIX)}
    assert given - SHARED <= {PREFIX + field.upper() for field in fields}
    assert given >= {PREFIX + field.upper() for field, what in fields.items() if what.is_required()}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_service_is_an_image_of_the_dockerfile_without_rights(name: str) -> None:
    service = OURS[name]
    target = service["build"]["target"]
    assert service["image"] == f"darkroom/{target}"
    assert re.search(rf"^FROM \w+ AS {target}$", (FOLDER / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "healthcheck" in service or name == "prepare"


@pytest.mark.parametrize("name", ["sweeper", "reconciler"])
def test_what_tidies_up_goes_on_by_the_command_line(name: str) -> None:
    assert refused_options(OURS[name]["command"]) == set()
    assert "--every" in OURS[name]["command"]


def test_the_notifier_needs_only_a_receiver() -> None:
    given = OURS["notifier"]["environment"]
    assert given["DARKROOM_WEBHOOK_URL"] == "${WEBHOOK_URL:-}"
    secret = re.fullmatch(r"\$\{WEBHOOK_SECRET:-(.+)\}", given["DARKROOM_WEBHOOK_SECRET"])
    assert secret is not None
    values = {name.removeprefix(PREFIX).lower(): value for name, value in given.items() if name.startswith(PREFIX)}
    values |= {"webhook_url": "http://receiver.example/", "webhook_secret": secret[1]}
    notifier.settings.Settings.model_validate(values)
    with pytest.raises(ValueError, match="webhook_url"):
        notifier.settings.Settings.model_validate(values | {"webhook_url": ""})

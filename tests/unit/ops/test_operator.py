"""Who is named in audit events when nobody was named."""

import getpass
import os

import pytest

from darkroom.ops.installation import OpsSettings


@pytest.mark.parametrize("raised", [KeyError("uid not found"), OSError("no username set")])
def test_a_user_without_a_name_as_containers_have_is_named_by_its_number(
    monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def nobody() -> str:
        raise raised

    for name, value in (("MONGO_URL", "mongodb://m"), ("KAFKA_BOOTSTRAP", "k:9092"), ("BUCKET", "pictures")):
        monkeypatch.setenv(f"DARKROOM_{name}", value)
    monkeypatch.delenv("DARKROOM_OPERATOR", raising=False)
    monkeypatch.setattr(getpass, "getuser", nobody)
    assert OpsSettings().operator == f"user {os.getuid()}"

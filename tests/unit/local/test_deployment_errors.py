"""What AWS refuses at a deployment is one message."""

import boto3
import pytest

from darkroom.local.deployment import DeploymentError, deploy
from darkroom.local.errors import LocalServerError


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    session = boto3.session.Session(region_name="us-east-1")
    monkeypatch.setattr(session._session, "get_credentials", lambda: None)
    with pytest.raises(DeploymentError, match="credentials") as refused:
        deploy("http://127.0.0.1:9", stack_name="darkroom", kafka_bootstrap="127.0.0.1:9", session=session)
    assert isinstance(refused.value, LocalServerError)

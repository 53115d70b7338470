"""The poller's own client."""

import pytest

from s3_bridge.poller import sqs_client


def test_the_region_is_the_one_that_awss_runtimes_set(monkeypatch: pytest.MonkeyPatch) -> None:
    # ECS and EKS give AWS_REGION alone; boto3 by itself reads AWS_DEFAULT_REGION only.
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    for name, value in {"REGION": "eu-north-1", "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    client = sqs_client(poll_seconds=5)
    try:
        assert client.meta.region_name == "eu-north-1"
        assert client.meta.config.read_timeout > 5
    finally:
        client.close()

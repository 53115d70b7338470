"""What is wrong with the endpoint that is prepared is said before anything is sent there."""

import pytest

from darkroom.setup.prepare import _endpoint


@pytest.mark.parametrize("given", ["https://", "http://a:x", "file:///etc/hostname", "http://aws:4566/?a"])
def test_an_endpoint_that_is_no_url_is_named(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", given)
    with pytest.raises(SystemExit, match="AWS_ENDPOINT_URL: this is no address"):
        _endpoint()


def test_a_host_of_compose_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://aws:4566")
    assert _endpoint() == "http://aws:4566"

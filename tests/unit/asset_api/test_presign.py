"""What a signed URL promises is in its signature, and it is for the right host."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
import botocore.session
import pytest
from botocore.credentials import RefreshableCredentials

from asset_api.errors import CannotSign
from asset_api.presign import Presigner, signed_headers
from darkroom.runtime.start import StartRefused
from support.events import registered

CHECKSUM = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
pytestmark = pytest.mark.usefixtures("settings")


def session(region: str = "eu-west-1", credentials: Any = None) -> Any:
    if credentials is None:
        return boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b", region_name=region)
    inner = botocore.session.get_session()
    inner._credentials = credentials
    return boto3.session.Session(botocore_session=inner, region_name=region)


def presigner(*, of: Any = None, endpoint_url: str | None = None) -> Presigner:
    return Presigner(
        session=of or session(),
        bucket="pictures-of-us",
        endpoint_url=endpoint_url,
        upload_seconds=900,
        download_seconds=300,
    )


def expiring(seconds: float) -> RefreshableCredentials:
    """Credentials of a role whose session ends so soon, and whose renewal gives the same again."""

    def given() -> dict[str, str]:
        ends = (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()
        return {"access_key": "a", "secret_key": "b", "token": "t", "expiry_time": ends}

    return RefreshableCredentials.create_from_metadata(given(), refresh_using=given, method="test")


@pytest.mark.parametrize("region", ["eu-west-1", "eu-north-1", "us-east-1"])
def test_on_aws_the_host_is_the_buckets_regional_one(region: str) -> None:
    signer = presigner(of=session(region))
    url = asyncio.run(signer.upload(registered().after)).url
    assert urlsplit(url).netloc == f"pictures-of-us.s3.{region}.amazonaws.com"
    assert urlsplit(url).scheme == "https"
    assert asyncio.run(signer.origin()) == f"https://pictures-of-us.s3.{region}.amazonaws.com"
    asyncio.run(signer.check())


def test_elsewhere_the_bucket_is_in_the_path_of_the_public_endpoint() -> None:
    asset = registered().after
    url = urlsplit(asyncio.run(presigner(endpoint_url="http://files.example:9000").upload(asset)).url)
    assert (url.netloc, url.path) == ("files.example:9000", f"/pictures-of-us/{asset.object_key}")


@pytest.mark.parametrize("checksum", [None, CHECKSUM])
def test_every_promised_header_is_signed(checksum: str | None) -> None:
    upload = asyncio.run(presigner().upload(registered(size=77, checksum_sha256=checksum).after))
    expected = {"Content-Type": "image/jpeg", "Content-Length": "77", "If-None-Match": "*"}
    assert upload.headers == expected | ({"x-amz-checksum-sha256": checksum} if checksum else {})
    assert signed_headers(upload.url) == {"host", *(name.lower() for name in upload.headers)}
    query = parse_qs(urlsplit(upload.url).query)
    assert query["X-Amz-Algorithm"] == ["AWS4-HMAC-SHA256"]
    assert query["X-Amz-Expires"] == ["900"]
    assert upload.method == "PUT"


def test_a_url_works_no_longer_than_the_credentials_that_signed_it() -> None:
    before = datetime.now(UTC)
    upload = asyncio.run(presigner(of=session(credentials=expiring(60))).upload(registered().after))
    (seconds,) = parse_qs(urlsplit(upload.url).query)["X-Amz-Expires"]
    assert 55 <= int(seconds) <= 61
    assert before + timedelta(seconds=50) < upload.expires_at < before + timedelta(seconds=63)
    lasting = asyncio.run(presigner(of=session(credentials=expiring(7200))).upload(registered().after))
    assert parse_qs(urlsplit(lasting.url).query)["X-Amz-Expires"] == ["900"]
    assert before + timedelta(seconds=895) < lasting.expires_at < before + timedelta(seconds=905)


def test_expired_credentials_sign_nothing() -> None:
    with pytest.raises(CannotSign, match="expired"):
        asyncio.run(presigner(of=session(credentials=expiring(-5))).upload(registered().after))


def test_without_credentials_or_region_the_service_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    with pytest.raises(StartRefused, match="AWS_ACCESS_KEY_ID"):
        asyncio.run(presigner(of=boto3.session.Session(region_name="eu-west-1")).check())
    anywhere = boto3.session.Session(aws_access_key_id="a", aws_secret_access_key="b")
    with pytest.raises(StartRefused, match="AWS_REGION"):
        asyncio.run(presigner(of=anywhere).check())


def test_an_original_is_saved_under_its_name_and_as_our_type() -> None:
    signer = presigner()
    url = asyncio.run(signer.download("assets/x/original.jpg", content_type="image/png", filename='é"\r\n;.jpg'))
    query = parse_qs(urlsplit(url).query)
    assert query["response-content-type"] == ["image/png"]
    (disposition,) = query["response-content-disposition"]
    assert disposition == "attachment; filename*=UTF-8''%C3%A9%22%0D%0A%3B.jpg"
    assert unquote(disposition).endswith('é"\r\n;.jpg')
    assert query["X-Amz-Expires"] == ["300"]


def test_a_header_that_the_signature_does_not_cover_is_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    signer = presigner()
    # No release of boto3 does it today; a later one may leave a header out of the signature.
    monkeypatch.setattr(
        signer._client, "generate_presigned_url", lambda *_, **__: "https://s3.example/x?X-Amz-SignedHeaders=host"
    )
    with pytest.raises(CannotSign, match="if-none-match"):
        asyncio.run(signer.upload(registered().after))

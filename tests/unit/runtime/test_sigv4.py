"""Our signatures are botocore's, byte for byte; and AWS's own published example comes out."""

from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

import boto3
import pytest
from botocore.config import Config
from hypothesis import given, settings
from hypothesis import strategies as st

from darkroom.runtime.signer import Signer
from darkroom.runtime.sigv4 import Credentials, Place, presign

KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40).filter(
    lambda key: not key.startswith("/") and "//" not in key and all(part not in (".", "..") for part in key.split("/"))
)
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
SECRETS = st.sampled_from(["secret", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "é" * 20])


@lru_cache
def client_of(credentials: Credentials, endpoint: str | None) -> Any:
    return boto3.session.Session(
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
        aws_session_token=credentials.token,
        region_name="eu-central-1",
    ).client(
        "s3",
        endpoint_url=endpoint,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path" if endpoint else "virtual"}),
    )


def botocores(credentials: Credentials, *, endpoint: str | None, operation: str, **given: Any) -> str:
    url: str = client_of(credentials, endpoint).generate_presigned_url(
        operation, Params={"Bucket": "pictures", **given}, ExpiresIn=600
    )
    return url


def ours(theirs: str, credentials: Credentials, *, endpoint: str | None, **request: Any) -> str:
    url = urlsplit(theirs)
    moment = datetime.strptime(parse_qs(url.query)["X-Amz-Date"][0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    place = Place(url.scheme, url.netloc, "/pictures/" if endpoint else "/", "eu-central-1")
    return presign(place=place, credentials=credentials, now=moment, seconds=600, **request)


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000"])
@pytest.mark.parametrize("token", [None, "tok/en+with=signs"])
@settings(max_examples=40)
@given(key=KEYS, kind=VALUES, size=st.integers(0, 2**40), checksum=VALUES, secret=SECRETS)
def test_a_put_is_signed_as_botocore_does(
    endpoint: str | None, token: str | None, key: str, kind: str, size: int, checksum: str, secret: str
) -> None:
    credentials = Credentials("AKIDEXAMPLE", secret, token)
    theirs = botocores(
        credentials,
        endpoint=endpoint,
        operation="put_object",
        Key=key,
        ContentType=kind,
        ContentLength=size,
        CacheControl="private, max-age=31536000, immutable",
        IfNoneMatch="*",
        ChecksumSHA256=checksum,
    )
    headers = {
        "content-type": kind,
        "content-length": str(size),
        "cache-control": "private, max-age=31536000, immutable",
        "if-none-match": "*",
        "x-amz-checksum-sha256": checksum,
    }
    assert ours(theirs, credentials, endpoint=endpoint, method="PUT", key=key, headers=headers) == theirs


@given(key=KEYS, kind=VALUES, disposition=st.text(max_size=40).filter(lambda text: text.isprintable()), version=VALUES)
def test_a_get_is_signed_as_botocore_does(key: str, kind: str, disposition: str, version: str) -> None:
    credentials = Credentials("AKIDEXAMPLE", "secret", None)
    theirs = botocores(
        credentials,
        endpoint=None,
        operation="get_object",
        Key=key,
        ResponseContentType=kind,
        ResponseContentDisposition=disposition,
        VersionId=version,
    )
    query = [
        ("response-content-type", kind),
        ("response-content-disposition", disposition),
        ("versionId", version),
    ]
    assert ours(theirs, credentials, endpoint=None, method="GET", key=key, query=query) == theirs


def test_the_example_that_aws_publishes() -> None:
    """Amazon S3's documentation, "Authenticating Requests: Using Query Parameters"."""
    url = presign(
        "GET",
        "test.txt",
        place=Place("https", "examplebucket.s3.amazonaws.com", "/", "us-east-1"),
        credentials=Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None),
        now=datetime(2013, 5, 24, tzinfo=UTC),
        seconds=86400,
    )
    signature = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"
    assert parse_qs(urlsplit(url).query)["X-Amz-Signature"] == [signature]


def test_credentials_do_not_show_themselves() -> None:
    assert "secret" not in repr(Credentials("AKID", "secret", "token"))


def test_a_place_where_botocore_signs_otherwise_is_left_to_it() -> None:
    credentials = Credentials("AKIDEXAMPLE", "secret", None)
    client = client_of(credentials, None)
    session = boto3.session.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="another")
    signer = Signer(client=client, session=session, bucket="pictures")  # ours would have another signature
    url = signer.url("get_object", parameters={"Key": "a.jpg"}, seconds=600)
    assert ours(url, credentials, endpoint=None, method="GET", key="a.jpg") == url


@pytest.mark.parametrize("endpoint", [None, "http://127.0.0.1:9000"])
def test_botocore_is_asked_once(endpoint: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    credentials = Credentials("AKIDEXAMPLE", "secret", None)
    client = client_of(credentials, endpoint)
    session = boto3.session.Session(aws_access_key_id="AKIDEXAMPLE", aws_secret_access_key="secret")
    signer = Signer(client=client, session=session, bucket="pictures")
    first = signer.url("get_object", parameters={"Key": "a.jpg"}, seconds=600)
    monkeypatch.setattr(client, "generate_presigned_url", None)
    assert ours(first, credentials, endpoint=endpoint, method="GET", key="a.jpg") == first
    put = {"Key": "b.jpg", "ContentType": "image/jpeg", "ContentLength": 7, "IfNoneMatch": "*"}
    headers = {"content-type": "image/jpeg", "content-length": "7", "if-none-match": "*"}
    second = signer.url("put_object", parameters=put, seconds=600)
    assert ours(second, credentials, endpoint=endpoint, method="PUT", key="b.jpg", headers=headers) == second

"""S3 clients, set up so that what is promised is signed and any S3-compatible store can be used."""

import os
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError

from darkroom.runtime.addresses import check_url
from darkroom.runtime.start import StartRefused


def aws_session() -> Any:
    """A session by AWS's own variables and roles.

    boto3 itself reads AWS_DEFAULT_REGION only; AWS's runtimes and its other SDKs have AWS_REGION.
    """
    return boto3.session.Session(region_name=os.environ.get("AWS_REGION") or None)


def aws_client(session: Any, service: str, *, endpoint_url: str | None = None, config: Config | None = None) -> Any:
    """A client of a service of AWS, whichever variable or file names its endpoint.

    Raises:
        StartRefused: the endpoint is no URL to send to, or the region no region.

    """
    try:
        client = session.client(service, endpoint_url=endpoint_url, config=config)
        # botocore lets much pass that fails at the first request, and at each one after it.
        check_url(client.meta.endpoint_url, base=True)
    except (BotoCoreError, ValueError) as error:
        named = "AWS_ENDPOINT_URL, AWS_REGION" if endpoint_url is None else f"the endpoint {endpoint_url!r}"
        raise StartRefused(f"No {service.upper()} client can be made ({named}): {error}") from None
    return client


def s3_client(
    *,
    endpoint_url: str | None = None,
    connect_timeout: float = 5.0,
    read_timeout: float = 30.0,
    attempts: int = 3,
    pool: int = 32,
    session: Any = None,
) -> Any:
    """An S3 client. Region and credentials come from AWS's own variables and roles; times are seconds.

    ``endpoint_url`` (or AWS_ENDPOINT_URL) names a store other than AWS, which is addressed by path; on AWS the host is
    the bucket's regional one, since a URL signed for the global host is redirected and then fails its signature.

    Raises:
        StartRefused: the endpoint is no URL, or the region no region.

    """
    session = session or aws_session()
    client = aws_client(session, "s3", endpoint_url=endpoint_url)
    on_aws = client.meta.endpoint_url.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return session.client(
        "s3",
        endpoint_url=endpoint_url,
        config=Config(
            # Without it boto3 signs by SigV2 in old regions and silently drops every constraint.
            signature_version="s3v4",
            # us-east-1 alone would else keep the global host.
            s3={"addressing_style": "virtual" if on_aws else "path", "us_east_1_regional_endpoint": "regional"},
            # Trailing checksums are refused by many S3-compatible stores; where one is promised it is sent explicitly.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            retries={"mode": "standard", "total_max_attempts": attempts},
            max_pool_connections=pool,
        ),
    )

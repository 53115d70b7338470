"""What the API can be told, by environment variables with the prefix DARKROOM_."""

from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from darkroom.runtime.settings import (
    BaseUrl,
    HealthSettings,
    HttpUrl,
    LifeSettings,
    LogSettings,
    MongoSettings,
    Origins,
    S3Settings,
)
from darkroom.runtime.tokens import AUDIENCE, ISSUER, MIN_SECRET_BYTES

LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


class Settings(MongoSettings, S3Settings, LifeSettings, LogSettings, HealthSettings):
    """Times in seconds, sizes in bytes. Region and credentials come by AWS's own variables and roles."""

    http_host: str = Field(default="127.0.0.1", description="address to listen on")
    http_port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    jwt_secret: SecretStr | None = Field(
        default=None, description="for development: the HS256 secret that signs the bearer tokens, at least 32 bytes"
    )
    jwks_url: HttpUrl | None = Field(
        default=None,
        validate_default=True,
        description="for production, instead of the secret: the https address of the issuer's keys, a JWK Set",
    )
    jwks_min_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="the shortest time between two fetches of the keys, whatever tokens name",
    )
    jwks_refresh_seconds: float = Field(
        default=300.0,
        ge=1,
        le=86_400,
        description="the age at which the keys are fetched again: so long a withdrawn key works",
    )
    jwks_keep_seconds: float = Field(
        default=86_400.0,
        ge=1,
        le=31_536_000,
        description="how long known keys are used while the issuer does not answer",
    )
    jwt_audience: str = Field(default=AUDIENCE, min_length=1, description="the audience that a token must name")
    jwt_issuer: str = Field(default=ISSUER, min_length=1, description="the issuer that a token must name")
    jwt_leeway_seconds: float = Field(default=10.0, ge=0, le=120, description="how far clocks may differ")
    max_upload_bytes: int = Field(default=50_000_000, ge=1, le=5_000_000_000, description="the largest upload")
    registrations_per_minute: int = Field(
        default=600, ge=1, le=1_000_000, description="how many uploads an owner may register a minute"
    )
    uploading_limit: int = Field(
        default=1000,
        ge=1,
        le=1_000_000,
        description="how many of an owner's assets may wait for their bytes at one time",
    )
    upload_url_seconds: int = Field(default=900, ge=1, le=604_800, description="how long an upload's URL works")
    download_url_seconds: int = Field(default=300, ge=1, le=604_800, description="how long a download's URL works")
    cloudfront_url: BaseUrl | None = Field(
        default=None, description="the https address of a CloudFront distribution that downloads go through"
    )
    cloudfront_key_id: str | None = Field(default=None, description="the id of its key pair's public key")
    cloudfront_private_key: SecretStr | None = Field(
        default=None, validate_default=True, description="the RSA private key of that pair in PEM"
    )
    s3_public_endpoint_url: BaseUrl | None = Field(
        default=None, description="the S3 endpoint as clients reach it, when that is not the one of AWS_ENDPOINT_URL"
    )
    cors_origins: Origins = Field(
        default=(),
        description="origins whose pages may call the API, as browsers send them (https://a.example.com), by commas; "
        "* for every page",
    )
    stream_listeners: int = Field(
        default=1000, ge=1, le=100_000, description="live streams that one process serves at once"
    )
    stream_listeners_per_owner: int = Field(
        default=250, ge=1, le=100_000, description="live streams of one owner at one process"
    )
    stream_queue: int = Field(
        default=256, ge=1, le=100_000, description="events that wait for a live stream before it is ended"
    )
    stream_heartbeat_seconds: float = Field(default=15.0, ge=0.1, le=600, description="the longest silence of a stream")
    stream_replay_seconds: float = Field(
        default=3600.0,
        ge=0,
        le=2_592_000,
        description="how far back a stream goes on from; whoever was away longer reads anew",
    )
    mongo_seconds: float = Field(
        default=5.0, ge=0.1, le=30, description="the longest that a request waits for MongoDB, once its turn has come"
    )
    mongo_connections: int = Field(
        default=32,
        ge=1,
        le=1000,
        description="connections to MongoDB at most; more are no faster, and a storm opens them all",
    )
    body_seconds: float = Field(
        default=10.0,
        ge=0.1,
        le=600,
        description="the longest that a request's head may take to arrive, and then its body",
    )
    keep_alive_seconds: int = Field(
        default=75,
        ge=1,
        le=3600,
        description="how long an idle connection is kept; longer than a load balancer in front does",
    )
    grace_seconds: int = Field(
        default=10, ge=1, le=3600, description="time for requests in flight to end after SIGTERM"
    )

    @field_validator("jwt_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"shorter than {MIN_SECRET_BYTES} bytes; make one with: openssl rand -hex 32")
        return secret

    @field_validator("jwks_url")
    @classmethod
    def _one_family_of_keys(cls, url: str | None, info: ValidationInfo) -> str | None:
        if "jwt_secret" in info.data and (url is None) == (info.data["jwt_secret"] is None):
            # Both at once is how a public key comes to be taken for a secret.
            raise ValueError("set either this one or DARKROOM_JWT_SECRET, and not both")
        if url is not None:
            address = urlsplit(url)
            if address.scheme != "https" and not (address.scheme == "http" and address.hostname in LOOPBACK):
                raise ValueError("must begin with https://; whoever can change the keys on their way is everybody")
        return url

    @field_validator("cloudfront_private_key")
    @classmethod
    def _all_of_cloudfront(cls, key: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        given = [key, info.data.get("cloudfront_url"), info.data.get("cloudfront_key_id")]
        if any(one is None for one in given) and any(one is not None for one in given):
            raise ValueError("DARKROOM_CLOUDFRONT_URL, _KEY_ID and _PRIVATE_KEY are set together or not at all")
        return key

    @field_validator("cloudfront_url")
    @classmethod
    def _https(cls, url: str | None) -> str | None:
        if url is not None and urlsplit(url).scheme != "https":
            raise ValueError("must begin with https://")
        return url

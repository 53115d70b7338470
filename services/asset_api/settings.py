"""What the API can be told, by environment variables with the prefix DARKROOM_."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import NoDecode

from darkroom.runtime.settings import LogSettings, MongoSettings, S3Settings
from darkroom.runtime.tokens import AUDIENCE, ISSUER

MIN_SECRET_BYTES = 32


class Settings(MongoSettings, S3Settings, LogSettings):
    """Times in seconds, sizes in bytes. Region and credentials come by AWS's own variables and roles."""

    http_host: str = Field(default="127.0.0.1", description="address to listen on")
    http_port: int = Field(default=8080, ge=0, le=65535, description="port to listen on; 0: any free one")
    jwt_secret: SecretStr = Field(description="the HS256 secret that signs the bearer tokens, at least 32 bytes")
    jwt_audience: str = Field(default=AUDIENCE, min_length=1, description="the audience that a token must name")
    jwt_issuer: str = Field(default=ISSUER, min_length=1, description="the issuer that a token must name")
    jwt_leeway_seconds: float = Field(default=10.0, ge=0, le=120, description="how far clocks may differ")
    max_upload_bytes: int = Field(default=50_000_000, ge=1, le=5_000_000_000, description="the largest upload")
    upload_url_seconds: int = Field(default=900, ge=1, le=604_800, description="how long an upload's URL works")
    download_url_seconds: int = Field(default=300, ge=1, le=604_800, description="how long a download's URL works")
    s3_public_endpoint_url: str | None = Field(
        default=None, description="the S3 endpoint as clients reach it, when that is not the one of AWS_ENDPOINT_URL"
    )
    cors_origins: Annotated[tuple[str, ...], NoDecode] = Field(
        default=(), description="origins whose pages may call the API, separated by commas; none by default"
    )
    stream_listeners: int = Field(default=1000, ge=1, description="live streams that one process serves at once")
    stream_listeners_per_owner: int = Field(default=250, ge=1, description="live streams of one owner at one process")
    stream_queue: int = Field(default=256, ge=1, description="events that wait for a live stream before it is ended")
    stream_heartbeat_seconds: float = Field(default=15.0, gt=0, le=600, description="the longest silence of a stream")
    stream_replay_seconds: float = Field(
        default=3600.0, ge=0, description="how far back a stream goes on from; whoever was away longer reads anew"
    )
    mongo_seconds: float = Field(default=5.0, gt=0, description="the longest that a request waits for MongoDB")
    body_seconds: float = Field(default=10.0, gt=0, description="the longest that a request's body may take to arrive")
    keep_alive_seconds: int = Field(
        default=75, ge=1, description="how long an idle connection is kept; longer than a load balancer in front does"
    )
    grace_seconds: int = Field(default=10, ge=1, description="time for requests in flight to end after SIGTERM")

    @field_validator("jwt_secret")
    @classmethod
    def _long_enough(cls, secret: SecretStr) -> SecretStr:
        if len(secret.get_secret_value().encode()) < MIN_SECRET_BYTES:
            raise ValueError(f"shorter than {MIN_SECRET_BYTES} bytes; make one with: openssl rand -hex 32")
        return secret

    @field_validator("cors_origins", mode="before")
    @classmethod
    def _split(cls, given: object) -> object:
        if isinstance(given, str):
            return tuple(origin.strip() for origin in given.split(",") if origin.strip())
        return given

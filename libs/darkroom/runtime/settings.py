"""Settings come from the environment; each service puts together the groups that it needs.

A setting that is missing or wrong ends the program with one line a variable, before anything is started.
"""

import os
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from darkroom.runtime.addresses import check_bootstrap, check_origin, check_url
from darkroom.runtime.redaction import secrets_in

PREFIX = "DARKROOM_"


def _split(given: object) -> object:
    if isinstance(given, str):
        return tuple(one.strip() for one in given.split(",") if one.strip())
    return given


Listed = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Several values in one variable, separated by commas."""


def _origins(origins: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(origin if origin == "*" else check_origin(origin) for origin in origins)


def _url_with_userinfo(url: str) -> str:
    return check_url(url, userinfo=True)


def _base_url(url: str) -> str:
    return check_url(url, base=True)


def _urls(urls: tuple[str, ...]) -> tuple[str, ...]:
    for number, url in enumerate(urls, start=1):
        try:
            check_url(url)
        except ValueError as error:
            raise ValueError(f"of address {number}: {error}") from None
    return urls


Origins = Annotated[Listed, AfterValidator(_origins)]
"""Origins of pages as browsers send them, ``scheme://host[:port]``; ``*`` stands for every page there is."""

HttpUrl = Annotated[str, AfterValidator(check_url)]
"""What is asked by HTTP, as it was given."""

HttpUrlWithUserinfo = Annotated[str, AfterValidator(_url_with_userinfo)]
"""The same; name and password may stand in it."""

BaseUrl = Annotated[str, AfterValidator(_base_url)]
"""The same, without them; paths are put behind it."""

HttpUrls = Annotated[Listed, AfterValidator(_urls)]
"""Several of the first."""


Bootstrap = Annotated[str, AfterValidator(check_bootstrap)]
"""Kafka's servers."""


class Group(BaseSettings):
    """Variables with the prefix ``DARKROOM_``.

    Every number has a least and a most: what is beyond them breaks something far from here, and later.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore", allow_inf_nan=False)


class MongoSettings(Group):
    """Where the state is. The server must be a replica set or a sharded cluster: transactions need one."""

    mongo_url: SecretStr = Field(description="MongoDB connection string of a replica set; may carry credentials")
    mongo_database: str = Field(
        default="darkroom",
        pattern=r"^[A-Za-z0-9_-]{1,63}$",
        description="name of the database: letters, digits, _ and -",
    )


class KafkaSettings(Group):
    """Where the events go."""

    kafka_bootstrap: Bootstrap = Field(
        min_length=1, description="Kafka bootstrap servers, host:port separated by commas"
    )
    kafka_config: dict[str, Any] = Field(
        default_factory=dict,
        description='further librdkafka settings as JSON, such as {"security.protocol": "SASL_SSL", …}',
        repr=False,
    )
    topic_prefix: str = Field(
        default="",
        pattern=r"^[A-Za-z0-9._-]{0,200}$",
        description="put before every topic's name, to share a cluster: letters, digits, ., _ and -",
    )


class S3Settings(Group):
    """Where the bytes are. Region and credentials come by AWS's own variables and roles."""

    bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$", description="the S3 bucket of originals and renditions"
    )


class LifeSettings(Group):
    """How long an asset stays as it is when nobody does anything."""

    uploading_hours: float = Field(
        default=24.0, ge=0.01, le=87_600, description="hours after which an upload that never came expires"
    )
    trash_days: float = Field(
        default=30.0, ge=0, le=36_500, description="days after which what is in the trash is purged"
    )


class LogSettings(Group):
    """How much is logged."""

    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="how much is logged")

    log_libraries: Literal["DEBUG", "INFO", "WARNING", "ERROR"] | None = Field(
        default=None,
        description="how much of what libraries log is shown; by default INFO, or less where less is logged",
    )

    def secrets(self) -> set[str]:
        """What no line of the log may show."""
        return secrets_in(dict(self), os.environ)

    @field_validator("log_level", "log_libraries", mode="before")
    @classmethod
    def _in_capitals(cls, given: object) -> object:
        return given.upper() if isinstance(given, str) else given


class HealthSettings(Group):
    """Where a service tells how it is. Whoever can reach this port needs no token: keep it inside."""

    health_host: str = Field(default="127.0.0.1", description="address of /healthz, /readyz, /startedz and /metrics")
    health_port: int = Field(
        default=0, ge=0, le=65535, description="port of /healthz, /readyz, /startedz and /metrics; 0: any free one"
    )


SettingsT = TypeVar("SettingsT", bound=BaseSettings)


def load(settings: type[SettingsT]) -> SettingsT:
    """Read the settings from the environment.

    Raises:
        SystemExit: with one line for each variable that is missing or wrong, and never its value.

    """
    try:
        return settings()
    except SettingsError as error:
        # Its own message names the field; the value, which may be a secret, is in its cause only.
        raise SystemExit(f"A setting is not the JSON that it must be: {error}") from None
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False, include_input=False):
            if not problem["loc"]:
                # Said by a rule over several settings, which names them itself.
                lines.append(problem["msg"])
                continue
            name = str(problem["loc"][0])
            field = settings.model_fields.get(name)
            meaning = f" ({field.description})" if field and field.description else ""
            state = "" if f"{PREFIX}{name.upper()}" in os.environ else " The variable is not set."
            lines.append(f"{PREFIX}{name.upper()}{meaning}: {problem['msg']}.{state}")
        raise SystemExit("\n".join(["These settings are missing or wrong:", *lines])) from None

"""What a notifier can be told, by environment variables with the prefix DARKROOM_."""

import base64
import binascii
import re
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from darkroom.runtime.settings import (
    HealthSettings,
    HttpUrlWithUserinfo,
    KafkaSettings,
    LogSettings,
    MongoSettings,
    S3Settings,
)

DAY = 86_400
ADDRESS = re.compile(r"[^@\s<>,;]+@[^@\s<>,;]+")


class Settings(MongoSettings, KafkaSettings, S3Settings, LogSettings, HealthSettings):
    """Times in seconds. At least one of e-mail and webhook must be set up."""

    notifier_group: str = Field(default="darkroom.notifier", description="Kafka consumer group and inbox consumer")
    notifier_slots: int = Field(default=8, ge=1, le=256, description="events told at once in this process")
    session_seconds: float = Field(
        default=15.0, ge=6, le=1800, description="how long a notifier that died keeps its partitions"
    )
    notifier_lease_seconds: float = Field(default=60.0, ge=0.5, le=3600, description="length of a lease on one event")
    notifier_max_attempts: int = Field(
        default=10, ge=1, le=1000, description="attempts before a notification is given up"
    )
    notifier_backoff_seconds: float = Field(
        default=300.0, ge=0.1, le=86_400, description="longest pause between two attempts"
    )
    notifier_grace_seconds: float = Field(
        default=20.0, ge=0, le=3600, description="time for running work to end after SIGTERM"
    )
    notifier_stalled_seconds: float = Field(
        default=180.0,
        ge=1,
        le=86_400,
        description="without an answer of any handler for so long the notifier is not ready",
    )
    notifier_link_seconds: int = Field(
        default=DAY, ge=60, le=7 * DAY, description="how long a notification's link works, at most"
    )
    notifier_resend_in_doubt: bool = Field(
        default=False,
        description="send an e-mail again when a crash hid whether it went out; otherwise it is recorded as IN_DOUBT",
    )
    email_from: str | None = Field(default=None, description="sender, an identity verified with SES; none: no e-mail")
    email_to: str = Field(
        default="{owner_id}",
        description="recipient; {owner_id} stands for the owner, where owners are e-mail addresses",
    )
    webhook_url: HttpUrlWithUserinfo | None = Field(default=None, description="receiver of webhooks; none: no webhook")
    webhook_secret: SecretStr | None = Field(
        default=None, description="signing secret of Standard Webhooks: whsec_ and 24 to 64 bytes in base64"
    )
    webhook_seconds: float = Field(
        default=15.0, ge=0.1, le=600, description="longest time that a receiver may take to answer"
    )

    @field_validator("webhook_secret")
    @classmethod
    def _decodes(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            try:
                key = base64.b64decode(value.get_secret_value().removeprefix("whsec_"), validate=True)
            except binascii.Error as error:
                raise ValueError("not base64 after whsec_") from error
            if not 24 <= len(key) <= 64:
                raise ValueError(f"has {len(key)} bytes; must have 24 to 64")
        return value

    @field_validator("email_to")
    @classmethod
    def _addresses(cls, value: str) -> str:
        if not (ADDRESS.fullmatch(value) or "{owner_id}" in value):
            raise ValueError("must be an e-mail address, or contain {owner_id}")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.email_from is None and self.webhook_url is None:
            raise ValueError("set DARKROOM_EMAIL_FROM, DARKROOM_WEBHOOK_URL or both: there is nobody to notify")
        if self.webhook_url is not None and self.webhook_secret is None:
            raise ValueError(
                "DARKROOM_WEBHOOK_SECRET is not set: a receiver could not tell our webhooks from forged ones"
            )
        return self

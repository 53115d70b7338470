"""What a relay can be told, by environment variables with the prefix DARKROOM_."""

import os
import socket
import uuid

from pydantic import Field

from darkroom.runtime.settings import HealthSettings, KafkaSettings, LogSettings, MongoSettings


class Settings(MongoSettings, KafkaSettings, LogSettings, HealthSettings):
    """Times in seconds."""

    relay_instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        description="name of this process in shard leases; must be unique to the process",
    )
    relay_lease_seconds: float = Field(default=10.0, ge=0.5, le=3600, description="length of a shard's lease")
    relay_poll_seconds: float = Field(
        default=1.0, ge=0.1, le=3600, description="how often the outbox is read when the change stream says nothing"
    )
    relay_in_flight: int = Field(
        default=20_000, ge=1, le=1_000_000, description="rows sent and not yet marked, at most"
    )
    relay_stall_seconds: float = Field(
        default=60.0, ge=1, le=3600, description="without one acknowledgement for so long the producer is replaced"
    )
    relay_silence_seconds: float = Field(
        default=30.0,
        ge=1,
        le=3600,
        description="without one acknowledgement for so long the relay is not ready (/readyz)",
    )
    relay_max_attempts: int = Field(
        default=5, ge=1, le=1000, description="refusals by the broker before an event is parked"
    )
    grace_seconds: float = Field(
        default=20.0, ge=0, le=3600, description="time for events in flight to end after SIGTERM"
    )

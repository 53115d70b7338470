"""What a processor can be told, by environment variables with the prefix DARKROOM_."""

import json
import os
import re
import socket
from typing import Annotated, Any

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from darkroom.life.rejected import RejectedOriginals
from darkroom.runtime.settings import HealthSettings, KafkaSettings, LogSettings, MongoSettings, S3Settings
from processor.classifier import OnFailure
from processor.imaging.rendition import Limits, RenditionSpec, default_specs

MIB = 2**20


class Settings(MongoSettings, KafkaSettings, S3Settings, LogSettings, HealthSettings):
    """Sizes in bytes, times in seconds."""

    processor_group: str = Field(default="darkroom.processor", description="Kafka consumer group and inbox consumer")
    processor_instance: str = Field(
        default_factory=lambda: f"{socket.gethostname()}-{os.getpid()}", description="name of this process in logs"
    )
    processor_slots: int = Field(default=8, ge=1, le=256, description="events worked on at once in this process")
    processor_decoders: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, le=256, description="child processes that decode pictures"
    )
    processor_max_buffered: int = Field(
        default=1000, ge=1, le=1_000_000, description="unfinished events held in memory at most"
    )
    group_protocol: str = Field(
        default="classic",
        pattern="^(classic|consumer)$",
        description="Kafka group protocol: classic, or consumer (KIP-848)",
    )
    session_seconds: float = Field(
        default=15.0,
        ge=6,
        le=1800,
        description="how long a processor that died keeps its partitions (group protocol classic)",
    )
    lease_seconds: float = Field(
        default=30.0, ge=0.5, le=3600, description="length of a lease; renewed at a third of it"
    )
    max_attempts: int = Field(default=5, ge=1, le=1000, description="attempts at an event before its asset is FAILED")
    backoff_seconds: float = Field(default=60.0, ge=0.1, le=86_400, description="longest pause between two attempts")
    inbox_keep_days: float = Field(
        default=90, ge=1, le=3650, description="how long done events are remembered; longer than the topic's retention"
    )
    max_upload_bytes: int = Field(
        default=50_000_000, ge=1, le=5_000_000_000, description="largest original that is downloaded"
    )
    stalled_seconds: float = Field(
        default=180.0,
        ge=1,
        le=86_400,
        description="without an answer of any handler for so long the processor is not ready",
    )
    download_seconds: float = Field(default=60.0, ge=1, le=3600, description="longest time that one download may take")
    grace_seconds: float = Field(default=20.0, ge=0, le=3600, description="time for running work to end after SIGTERM")
    drain_seconds: float = Field(
        default=5.0, ge=0, le=3600, description="time for running work to end when a partition moves"
    )
    decode_seconds: float = Field(
        default=20.0, ge=1, le=3600, description="longest time that decoding one picture may take"
    )
    decode_cpu_seconds: int = Field(
        default=15, ge=1, le=3600, description="CPU time that decoding one picture may take"
    )
    decode_memory_bytes: int = Field(
        default=2048 * MIB, ge=256 * MIB, le=1024 * 1024 * MIB, description="memory of one decoding process"
    )
    decode_jobs_per_child: int = Field(
        default=200, ge=1, le=1_000_000, description="pictures before a decoding process is replaced"
    )
    max_pixels: int = Field(default=100_000_000, ge=1, le=10_000_000_000, description="largest picture, width x height")
    max_side: int = Field(default=65_535, ge=1, le=1_000_000, description="longest side of a picture, in pixels")
    max_frames: int = Field(
        default=10_000, ge=1, le=1_000_000, description="frames of an animation; only the first is rendered"
    )
    max_metadata_bytes: int = Field(
        default=16 * MIB, ge=0, le=1024 * MIB, description="EXIF, XMP, colour profiles and comments of one picture"
    )
    rejected_originals: RejectedOriginals = Field(
        default=RejectedOriginals.TAG,
        description="what becomes of an original whose asset FAILED: keep, tag (darkroom-state=rejected) or delete",
    )
    classifier: str | None = Field(
        default=None, description="your own function from a picture to labels, as module:function; see docs/labels.md"
    )
    classifier_seconds: float = Field(
        default=10.0, ge=0.1, le=3600, description="longest time that one classification may take"
    )
    classifier_on_failure: OnFailure = Field(
        default=OnFailure.SKIP, description="skip: READY without its labels; retry: an attempt failed"
    )
    renditions: Annotated[tuple[RenditionSpec, ...], NoDecode, Field(min_length=1)] = Field(
        default_factory=default_specs,
        description='JSON list such as [{"name": "thumb", "box": [256, 256], "fit": "cover", "format": "webp"}]',
    )

    @property
    def limits(self) -> Limits:
        """The ceilings on one picture."""
        return Limits(
            max_pixels=self.max_pixels,
            max_side=self.max_side,
            max_frames=self.max_frames,
            max_metadata_bytes=self.max_metadata_bytes,
            # The rest is for the interpreter, the libraries, the file and the renditions.
            max_decode_bytes=self.decode_memory_bytes * 5 // 8,
        )

    @field_validator("renditions", mode="before")
    @classmethod
    def _from_json(cls, value: Any) -> Any:
        try:
            return json.loads(value) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(f"not JSON: {error}") from error

    @field_validator("renditions")
    @classmethod
    def _named_once(cls, value: tuple[RenditionSpec, ...]) -> tuple[RenditionSpec, ...]:
        names = [spec.name for spec in value]
        if len(set(names)) != len(names) or "original" in names:
            raise ValueError(f"every rendition needs a name of its own, and none is called original; got {names}")
        if wrong := [name for name in names if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name)]:
            raise ValueError(f"a rendition's name is part of its key: letters, digits, _ and - only; got {wrong}")
        return value

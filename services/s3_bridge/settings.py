"""What the bridge reads from its environment: as a Lambda function and as a container."""

from pydantic import Field

from darkroom.runtime.settings import HealthSettings, HttpUrl, KafkaSettings, LogSettings, S3Settings


class FunctionSettings(KafkaSettings, S3Settings, LogSettings):
    """Of the Lambda function. How long it may take is told by each invocation."""

    kafka_config_secret: str | None = Field(
        default=None,
        description="ARN of a Secrets Manager secret: librdkafka settings as JSON, added to DARKROOM_KAFKA_CONFIG",
    )


class PollerSettings(KafkaSettings, S3Settings, LogSettings, HealthSettings):
    """Of the long-polling container."""

    queue_url: HttpUrl = Field(description="URL of the SQS queue that S3 notifies")
    publish_seconds: float = Field(
        default=20.0,
        ge=1,
        le=3600,
        description="how long Kafka may take to acknowledge a batch; keep it well below the queue's visibility timeout",
    )
    # Docker ends a container 10 s after asking it to stop, and a receive cannot be interrupted.
    poll_seconds: int = Field(default=5, ge=1, le=20, description="how long one receive waits for messages")

"""The events Darkroom publishes, as types, as JSON Schemas and as Kafka records. Depends on pydantic alone."""

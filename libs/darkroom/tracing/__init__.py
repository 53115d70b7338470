"""Traces: ``traceparent`` says which one an event belongs to, ``spans`` tells OpenTelemetry of the steps in it."""

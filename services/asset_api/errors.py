"""Errors that cross modules."""


class CannotSign(Exception):
    """URLs cannot be signed now: the credentials have expired, or a promised header would not be covered."""

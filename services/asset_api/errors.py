"""Errors that cross modules."""


class CannotSign(Exception):
    """URLs cannot be signed now: the credentials have expired, or a promised header would not be covered."""


class KeysUnavailable(Exception):
    """No key is known that a token could be checked with, and the issuer does not give any now."""

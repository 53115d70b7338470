"""``darkroom token``: a bearer token for development."""

import os
from enum import StrEnum
from typing import Annotated

import typer

from darkroom.cli import operation
from darkroom.cli.operation import Json, between, print_json
from darkroom.runtime.tokens import MIN_SECRET_BYTES, mint


class Scope(StrEnum):
    """What a token may allow."""

    READ = "assets:read"
    WRITE = "assets:write"
    ADMIN = "assets:admin"


def token(
    owner: Annotated[
        str,
        typer.Argument(
            help="Whose token it is: the sub claim, and the owner of what is uploaded.", callback=operation.owner
        ),
    ],
    hours: Annotated[float, between(0.01, 87_600, "How long it is valid.")] = 24,
    scope: Annotated[
        list[Scope] | None, typer.Option(help="What it allows; may be given several times. Default: read and write.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Print a token signed with DARKROOM_JWT_SECRET, which must be the API's own."""
    secret = os.environ.get("DARKROOM_JWT_SECRET")
    if not secret:
        raise typer.BadParameter("DARKROOM_JWT_SECRET is not set; give it the value that the API runs with.")
    if len(secret.encode()) < MIN_SECRET_BYTES:
        raise typer.BadParameter(f"DARKROOM_JWT_SECRET is shorter than {MIN_SECRET_BYTES} bytes; no API runs with it.")
    scopes = scope or [Scope.READ, Scope.WRITE]
    seconds = round(hours * 3600)
    minted = mint(secret, owner=owner, seconds=seconds, scopes=scopes)
    if as_json:
        # The forms of an answer of OAuth 2.0 (RFC 6749, 5.1).
        told = {"access_token": minted, "token_type": "Bearer", "expires_in": seconds, "scope": " ".join(scopes)}
        print_json(told)
        return
    print(minted)

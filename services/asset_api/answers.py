"""What all routes answer with: JSON, problems as OpenAPI describes them, and entity tags."""

import re
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from asset_api.problems import MEDIA_TYPE, Problem, Problems
from darkroom.assets import Asset
from darkroom.contracts.events import UUID_PATTERN

_ASSET_ID = re.compile(UUID_PATTERN.strip("^$"))
_ENTITY_TAG = re.compile(r'(?:W/)?("[\x21\x23-\x7e]*")')
_ENTITY_TAGS = re.compile(rf"[ \t]*+{_ENTITY_TAG.pattern}[ \t]*+(?:,[ \t]*+(?:{_ENTITY_TAG.pattern}[ \t]*+)?)*+")


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that an operation may end with, as OpenAPI names them."""
    schema = {
        "type": "object",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string"},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "request_id": {"type": "string"},
            "errors": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["field", "message"],
                    "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
                },
            },
        },
    }
    titles = {
        status: " / ".join(kind.value.title for kind in Problems if kind.value.status == status) for status in statuses
    }
    return {status: {"description": titles[status], "content": {MEDIA_TYPE: {"schema": schema}}} for status in statuses}


def json_response(view: BaseModel, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The view as JSON."""
    return Response(view.model_dump_json(), status_code=status, media_type="application/json", headers=headers)


def entity_tag(*parts: object) -> str:
    """A weak ETag: equal parts mean an answer that is as good."""
    return f'W/"{"-".join(str(part) for part in parts)}"'


def unchanged(request: Request, tag: str) -> Response | None:
    """304, if the client says by If-None-Match that it has the answer of this tag."""
    known = ", ".join(request.headers.getlist("if-none-match"))
    known_tags = _ENTITY_TAG.findall(known) if _ENTITY_TAGS.fullmatch(known) else []
    if known.strip() == "*" or tag.removeprefix("W/") in known_tags:
        return Response(status_code=304, headers={"ETag": tag})
    return None


def is_asset_id(text: str) -> bool:
    """Whether this can be the id of an asset."""
    return _ASSET_ID.fullmatch(text) is not None


def no_such_asset() -> Problem:
    """The same for an id that nobody has and for one of another owner."""
    return Problem(Problems.NOT_FOUND, "You have no asset of this id.")


def wrong_state(asset: Asset, detail: str, *, retry_after: int | None = None) -> Problem:
    """409, with the state."""
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return Problem(Problems.WRONG_STATE, detail, headers=headers, members={"asset_status": str(asset.status)})

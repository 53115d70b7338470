"""Pages of other origins (CORS): which may call the API, what they may send, and what they may read."""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp

from asset_api.edge import REQUEST_ID
from asset_api.problems import Problem, Problems, to_response

METHODS = ("GET", "POST", "DELETE")
SENT = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "If-None-Match",
    "Last-Event-ID",
    # Whoever traces sends both (W3C Trace Context), and a browser asks for all fields or sends nothing.
    "traceparent",
    "tracestate",
    REQUEST_ID,
)
READ = ("Allow", "ETag", "Idempotency-Replayed", "Link", "Location", "Retry-After", "WWW-Authenticate", REQUEST_ID)
REMEMBERED_SECONDS = 600


class Cors(CORSMiddleware):
    """Starlette's, but that a preflight which is refused is a problem like every other error."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=SENT,
            expose_headers=READ,
            max_age=REMEMBERED_SECONDS,
        )

    def preflight_response(self, request_headers: Headers) -> Response:
        """See ``CORSMiddleware``."""
        answer = super().preflight_response(request_headers)
        if answer.status_code < 400:
            return answer
        detail = f"{bytes(answer.body).decode()}. DARKROOM_CORS_ORIGINS names the origins that may call this API."
        refusal = to_response(Problem(Problems.BAD_REQUEST, detail), request_id=None)
        refusal.headers["Vary"] = "Origin"
        return refusal

"""The page at ``/``: a few plain files as they are, and a policy that lets them talk to the API and to S3 alone."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from asset_api.answers import entity_tag, unchanged
from asset_api.direct import Route
from asset_api.presign import Presigner
from asset_api.problems import Problem, Problems

READING = ["GET", "HEAD"]
FOLDER = Path(__file__).parent / "pages"
FILES = {
    "app.css": "text/css",
    "favicon.svg": "image/svg+xml",
    **dict.fromkeys(("app.js", "api.js", "cards.js", "details.js", "thumbhash.js", "uploads.js"), "text/javascript"),
}


def page_policy(origins: Iterable[str]) -> str:
    """The Content-Security-Policy of the page: no inline script, and no host but ours and those of signed URLs."""
    storage = " ".join(origins)
    return (
        "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"connect-src 'self' {storage}; img-src 'self' blob: {storage}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        # No text ever becomes markup: names of files and reasons of failures come from elsewhere.
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def page_router(*, presigner: Presigner) -> APIRouter:
    """``/`` and its files."""
    router = APIRouter(include_in_schema=False, route_class=Route)
    # A few kilobytes: served out of memory, and nothing of the disk can be asked for.
    contents = {name: (FOLDER / name).read_bytes() for name in ("index.html", *FILES)}
    tags = {name: entity_tag(hashlib.sha256(content).hexdigest()[:32]) for name, content in contents.items()}

    @router.api_route("/", methods=READING)
    async def index() -> Response:
        policy = page_policy(await presigner.origins())
        return HTMLResponse(contents["index.html"], headers={"Content-Security-Policy": policy})

    @router.api_route("/favicon.ico", methods=READING)
    async def favicon(request: Request) -> Response:
        return await file(request, "favicon.svg")  # what browsers ask for that are not on the page, and tools

    @router.api_route("/pages/{name}", methods=READING)
    async def file(request: Request, name: str) -> Response:
        if name not in FILES:
            raise Problem(Problems.NOT_FOUND, "There is nothing at this address.")
        answer = unchanged(request, tags[name]) or Response(contents[name], media_type=FILES[name])
        # On a 304, too: by its fields a cache renews what it has (RFC 9110, 15.4.5).
        answer.headers.update({"Cache-Control": "no-cache", "ETag": tags[name]})
        return answer

    return router

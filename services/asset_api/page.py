"""The page at ``/``: a few plain files as they are, and a policy that lets them talk to the API and to S3 alone."""

from collections.abc import Iterable
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse, Response

from asset_api.presign import Presigner
from asset_api.problems import Problem, Problems

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
    router = APIRouter(include_in_schema=False)

    @router.get("/")
    async def index() -> Response:
        policy = page_policy(await presigner.origins())
        return FileResponse(FOLDER / "index.html", headers={"Content-Security-Policy": policy})

    @router.get("/favicon.ico")
    async def favicon() -> Response:
        return await file("favicon.svg")  # what browsers ask for that are not on the page, and tools

    @router.get("/pages/{name}")
    async def file(name: str) -> Response:
        if name not in FILES:
            raise Problem(Problems.NOT_FOUND, "There is nothing at this address.")
        return FileResponse(FOLDER / name, media_type=FILES[name], headers={"Cache-Control": "no-cache"})

    return router

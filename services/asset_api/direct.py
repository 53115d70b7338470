"""Routes that FastAPI describes and does not run: its way to an endpoint costs more than all that most of ours do."""

import inspect
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, get_args, get_origin

from fastapi import APIRouter, FastAPI, params
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from asset_api.auth import Bearer


class Api(FastAPI):
    """FastAPI with the routes of ``include`` and no middleware around them but its answers to errors, and added ones.

    Its others are for errors that nobody answers, limits of bodies, telemetry and files of forms: there are none here.
    """

    def include(self, router: APIRouter) -> None:
        """``include_router``, for a router whose routes are complete: they are found without asking for its prefix."""
        self.router.routes += router.routes

    def build_middleware_stack(self) -> ASGIApp:
        """See ``FastAPI``."""
        app: ASGIApp = ExceptionMiddleware(_ByPath(self.router), handlers=self.exception_handlers)
        for middleware, given, named in reversed(self.user_middleware):
            app = middleware(app, *given, **named)
        return app


class _ByPath:
    """The router; but a path without parameters is looked up, and not compared with one route after the other."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._routes = {
            (method, route.path): route
            for route in router.routes
            if isinstance(route, Route) and route.direct and not route.param_convertors
            for method in route.methods or ()
            if route is _first(router, method, route.path)
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = None if scope["type"] != "http" else self._routes.get((scope["method"], scope["path"]))
        if route is None:
            if scope.get("path", "").endswith("\n"):
                raise HTTPException(404)  # Starlette's paths end with "$", which also is before a last newline
            await self._router(scope, receive, send)
        else:
            scope.update(route=route, endpoint=route.endpoint, path_params={})
            await route.app(scope, receive, send)


def _first(router: APIRouter, method: str, path: str) -> BaseRoute | None:
    scope = {"type": "http", "method": method, "path": path}
    return next((route for route in router.routes if route.matches(scope)[0] is Match.FULL), None)


Endpoint = Callable[..., Coroutine[Any, Any, Response]]


class Route(APIRoute):
    """FastAPI's route, in what it describes.

    An endpoint that takes the request, texts out of the path and a caller, and that makes its answer itself, is called
    with just these. Whatever takes more, such as a query, FastAPI runs.
    """

    def __init__(self, path: str, endpoint: Endpoint, **named: Any) -> None:
        """See ``APIRoute``."""
        super().__init__(path, endpoint, **named)
        signature = inspect.signature(endpoint)
        wanted = {name: one.annotation for name, one in signature.parameters.items()}
        requests = [name for name, what in wanted.items() if what is Request]
        texts = [name for name, what in wanted.items() if what is str and name in self.param_convertors]
        callers = [(name, bearer) for name, what in wanted.items() if (bearer := _bearer(what)) is not None]
        self.direct = signature.return_annotation is Response and len(wanted) == len([*requests, *texts, *callers])
        if not self.direct:
            self.app = AsyncExitStackMiddleware(self.app)
            return

        async def run(scope: Scope, receive: Receive, send: Send) -> None:
            request = Request(scope, receive, send)
            given: dict[str, Any] = dict.fromkeys(requests, request)
            for name in texts:
                given[name] = scope["path_params"][name]
            for name, bearer in callers:
                given[name] = await bearer(request)
            answer = await endpoint(**given)
            await answer(scope, receive, send)

        self.app = run


def _bearer(annotation: Any) -> Bearer | None:
    """What ``Annotated[Caller, Depends(bearer)]`` depends on."""
    if get_origin(annotation) is Annotated:
        for one in get_args(annotation)[1:]:
            if isinstance(one, params.Depends) and isinstance(one.dependency, Bearer):
                return one.dependency
    return None

"""The composition root of the API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pymongo.errors import PyMongoError
from starlette.middleware.cors import CORSMiddleware

from asset_api import problems
from asset_api.auth import Bearer, Tokens
from asset_api.edge import REQUEST_ID, Edge
from asset_api.errors import StartRefused
from asset_api.live import CONNECTION, Hub
from asset_api.page import page_router
from asset_api.presign import Presigner
from asset_api.routes import assets_router, health_router
from asset_api.settings import Settings
from asset_api.store import AssetStore
from asset_api.streams import streams_router
from darkroom.runtime.mongo import AsyncClient, NotAReplicaSet, check_replica_set, connect_async
from darkroom.runtime.s3 import aws_session


def create_app(settings: Settings) -> FastAPI:
    """The API. Nothing is connected before its lifespan begins, which raises StartRefused when it cannot work."""
    client = connect_async(settings.mongo_url.get_secret_value(), appname="darkroom-asset-api")
    store = AssetStore(client=client, database=settings.mongo_database, seconds=settings.mongo_seconds)
    live_client = connect_async(settings.mongo_url.get_secret_value(), **CONNECTION)
    hub = Hub(
        client=live_client,
        database=settings.mongo_database,
        seconds=settings.mongo_seconds,
        listeners=settings.stream_listeners,
        per_owner=settings.stream_listeners_per_owner,
        queued=settings.stream_queue,
        replay_seconds=settings.stream_replay_seconds,
    )
    presigner = Presigner(
        session=aws_session(),
        bucket=settings.bucket,
        endpoint_url=settings.s3_public_endpoint_url,
        upload_seconds=settings.upload_url_seconds,
        download_seconds=settings.download_url_seconds,
    )
    tokens = Tokens(
        secret=settings.jwt_secret.get_secret_value(),
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        leeway_seconds=settings.jwt_leeway_seconds,
    )

    bearer = Bearer(tokens)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await prepare(client=client, store=store, presigner=presigner)
            yield
        finally:
            await hub.close()
            await live_client.close()
            await client.close()

    # No /docs: its page would load scripts from elsewhere. The description itself is at /openapi.json.
    app = FastAPI(title="Darkroom", version="1", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.hub = hub
    problems.install(app)
    app.add_middleware(Edge)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID", REQUEST_ID],
            expose_headers=["Idempotency-Replayed", "Location", "Retry-After", REQUEST_ID],
            max_age=600,
        )
    app.include_router(
        streams_router(hub=hub, store=store, bearer=bearer, heartbeat_seconds=settings.stream_heartbeat_seconds)
    )
    app.include_router(
        assets_router(
            store=store,
            presigner=presigner,
            bearer=bearer,
            max_upload_bytes=settings.max_upload_bytes,
            body_seconds=settings.body_seconds,
        )
    )
    app.include_router(health_router(store=store))
    app.include_router(page_router(presigner=presigner))
    return app


async def prepare(*, client: AsyncClient, store: AssetStore, presigner: Presigner) -> None:
    """Check what the service needs and create its indexes.

    Raises:
        StartRefused: saying what is missing.

    """
    await presigner.check()
    try:
        check_replica_set(await client.admin.command("hello"))
        await store.ensure_indexes()
    except NotAReplicaSet as error:
        raise StartRefused(str(error)) from error
    except PyMongoError as error:
        raise StartRefused(f"MongoDB (DARKROOM_MONGO_URL): {str(error)[:500]}") from error

"""The composition root of the API."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import httpx
from fastapi import FastAPI

from asset_api import problems
from asset_api.auth import SecretKey, Tokens
from asset_api.cloudfront import CloudFront
from asset_api.cors import Cors
from asset_api.direct import Api
from asset_api.edge import Edge
from asset_api.jwks import IssuerKeys, fetch_from
from asset_api.life import life_router
from asset_api.live import CONNECTION, Hub
from asset_api.metrics import ApiMetrics
from asset_api.page import page_router
from asset_api.presign import Presigner
from asset_api.quota import Limits, Quota
from asset_api.reading import reading_router
from asset_api.routes import assets_router, health_router
from asset_api.settings import Settings
from asset_api.store import AssetStore
from asset_api.streams import streams_router
from darkroom.metrics.registry import new_registry
from darkroom.runtime.mongo import AsyncClient, check_replica_set, connect_async, required
from darkroom.runtime.s3 import aws_session
from darkroom.runtime.start import StartRefused

JWKS_SECONDS = 5.0
"""The longest that a fetch of the issuer's keys may take."""


def create_app(settings: Settings) -> FastAPI:
    """The API. Nothing is connected before its lifespan begins, which raises StartRefused when it cannot work."""
    client = connect_async(
        settings.mongo_url.get_secret_value(), appname="darkroom-asset-api", maxPoolSize=settings.mongo_connections
    )
    quota = Quota(
        client=client,
        database=settings.mongo_database,
        limits=Limits(per_minute=settings.registrations_per_minute, uploading=settings.uploading_limit),
        seconds=settings.mongo_seconds,
    )
    store = AssetStore(
        client=client,
        database=settings.mongo_database,
        seconds=settings.mongo_seconds,
        quota=quota,
        at_once=settings.mongo_connections,
    )
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
    metrics = ApiMetrics(new_registry())
    metrics.watch(hub)
    presigner = Presigner(
        session=aws_session(),
        bucket=settings.bucket,
        endpoint_url=settings.s3_public_endpoint_url,
        upload_seconds=settings.upload_url_seconds,
        download_seconds=settings.download_url_seconds,
        cloudfront=cloudfront(settings),
    )
    http = httpx.AsyncClient()
    issuer_keys = None if settings.jwks_url is None else issuer(settings.jwks_url, settings, http)
    tokens = Tokens(
        keys=issuer_keys or secret_key(settings),
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        leeway_seconds=settings.jwt_leeway_seconds,
    )

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            await prepare(client=client, store=store, presigner=presigner)
            if issuer_keys is not None:
                # The first caller need not wait; an issuer that is down does not keep the service from starting.
                await issuer_keys.refresh()
            yield
        finally:
            if issuer_keys is not None:
                await issuer_keys.close()
            await http.aclose()
            await hub.close()
            await live_client.close()
            await client.close()

    # No /docs: its page would load scripts from elsewhere. The description itself is at /openapi.json.
    app = Api(
        title="Darkroom",
        version="1",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        # A path with a slash too many is none of ours. Starlette would redirect to http and whatever Host the client
        # names: behind TLS that sends the token again in the clear.
        redirect_slashes=False,
        # Requests have a span of ours (see Edge). FastAPI's own would begin another trace, and tell paths and queries.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.hub, app.state.store, app.state.metrics = hub, store, metrics
    problems.install(app)
    app.add_middleware(Edge, answered=metrics.answered)
    if settings.cors_origins:
        app.add_middleware(Cors, origins=settings.cors_origins)
    app.include(
        streams_router(hub=hub, store=store, tokens=tokens, heartbeat_seconds=settings.stream_heartbeat_seconds)
    )
    app.include(
        assets_router(
            store=store,
            presigner=presigner,
            tokens=tokens,
            max_upload_bytes=settings.max_upload_bytes,
            uploading=timedelta(hours=settings.uploading_hours),
            body_seconds=settings.body_seconds,
            counted=metrics.registered,
        )
    )
    app.include(reading_router(store=store, presigner=presigner, tokens=tokens))
    app.include(life_router(store=store, presigner=presigner, tokens=tokens))
    app.include(health_router(store=store))
    app.include(page_router(presigner=presigner))
    return app


def cloudfront(settings: Settings) -> CloudFront | None:
    """The distribution that downloads go through, if one is set up."""
    url, key_id, private_key = settings.cloudfront_url, settings.cloudfront_key_id, settings.cloudfront_private_key
    if url is None or key_id is None or private_key is None:
        return None
    return CloudFront(base_url=url, key_id=key_id, private_key=private_key.get_secret_value())


def issuer(url: str, settings: Settings, http: httpx.AsyncClient) -> IssuerKeys:
    """The keys of the issuer at ``url``."""
    return IssuerKeys(
        fetch_from(url, http, seconds=JWKS_SECONDS),
        min_seconds=settings.jwks_min_seconds,
        refresh_seconds=settings.jwks_refresh_seconds,
        keep_seconds=settings.jwks_keep_seconds,
    )


def secret_key(settings: Settings) -> SecretKey:
    """The key that development has."""
    if settings.jwt_secret is None:
        raise StartRefused("Set DARKROOM_JWKS_URL or DARKROOM_JWT_SECRET: nobody can be told from anybody without.")
    return SecretKey(settings.jwt_secret.get_secret_value())


async def prepare(*, client: AsyncClient, store: AssetStore, presigner: Presigner) -> None:
    """Check what the service needs and create its indexes.

    Raises:
        StartRefused: saying what is missing.

    """
    await presigner.check()
    with required():
        check_replica_set(await client.admin.command("hello"))
        await store.ensure_indexes()

"""Begin a service so that what stands in the way is one sentence on standard error, not a traceback."""

from collections.abc import Callable

from pymongo.errors import PyMongoError

from darkroom.runtime.mongo import NotAReplicaSet


def start(main: Callable[[], None]) -> None:
    """Run a service's ``main``.

    Raises:
        SystemExit: a server that the service needs cannot be used; with the reason and the fix.

    """
    try:
        main()
    except NotAReplicaSet as error:
        raise SystemExit(str(error)) from None
    except PyMongoError as error:
        raise SystemExit(f"MongoDB, named by DARKROOM_MONGO_URL, cannot be used: {error}") from error

"""Begin a service so that what stands in the way is one sentence on standard error, not a traceback."""

from collections.abc import Callable


class StartRefused(RuntimeError):
    """The service cannot work as it is set up. The message names the setting or the server, and says what to change."""


def start(main: Callable[[], None]) -> None:
    """Run a service's ``main``.

    Raises:
        SystemExit: the service cannot start; with the reason and the fix.

    """
    try:
        main()
    except StartRefused as refusal:
        raise SystemExit(str(refusal)) from None

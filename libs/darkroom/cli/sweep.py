"""``darkroom sweep``: let what is over be over."""

from typing import Annotated

from pymongo.errors import PyMongoError
from rich.console import Console

from darkroom.cli.operation import YEAR, Json, between, fail, print_json
from darkroom.life.app import sweep as run
from darkroom.runtime.mongo import reason
from darkroom.runtime.start import StartRefused


def sweep(
    every: Annotated[
        float | None,
        between(1, YEAR, "Sweep again after so many seconds, until SIGTERM. Default: once."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Expire uploads that never came, purge what was in the trash for long enough, and remove the objects of both.

    One sweep runs at a time, however many are started; one that dies is taken up by the next.

    Exit code 0: it swept, or another one was sweeping; or it was to go on and was told to stop. 2: it could not run.
    """
    try:
        swept = run(every=every)
    except (StartRefused, SystemExit) as refusal:
        fail(str(refusal))
    except PyMongoError as error:
        fail(f"{type(error).__name__}: {reason(error)}")
    if every is not None:
        return
    if as_json:
        print_json({"ran": swept is not None, **({} if swept is None else vars(swept))})
        return
    done = "another sweep is running" if swept is None else ", ".join(f"{n} {k}" for k, n in vars(swept).items())
    Console().print(done, highlight=False)

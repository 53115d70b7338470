"""``darkroom sweep``: let what is over be over."""

from typing import Annotated

import typer
from rich.console import Console

from darkroom.cli.operation import Json, print_json
from darkroom.life.app import sweep as run
from darkroom.runtime.start import start


def sweep(
    every: Annotated[
        float | None, typer.Option(min=1, help="Sweep again after so many seconds, until SIGTERM. Default: once.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Expire uploads that never came, purge what was in the trash for long enough, and remove the objects of both.

    One sweep runs at a time, however many are started; one that dies is taken up by the next.
    """

    def once() -> None:
        swept = run(every=every)
        if every is not None:
            return
        if as_json:
            print_json({"ran": swept is not None, **({} if swept is None else vars(swept))})
            return
        done = "another sweep is running" if swept is None else ", ".join(f"{n} {k}" for k, n in vars(swept).items())
        Console().print(done, highlight=False)

    start(once)

"""The ``darkroom`` command: one file a group of commands; this one puts them together."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import typer
from confluent_kafka import KafkaException

from darkroom.cli import dlq, reconcile, setup, status, sweep, token, verify, why
from darkroom.cli.operation import fail
from darkroom.local.errors import LocalServerError
from darkroom.runtime.start import StartRefused

LOCAL = ("up", "demo", "chaos")
"""Commands that run everything on this machine: an operator's machine need not have what they take."""


def _local(name: str) -> Callable[..., Any]:
    try:
        command: Callable[..., Any] = getattr(import_module(f"darkroom.cli.{name}"), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("darkroom"):
            raise
        reason = f"`darkroom {name}` needs {missing.name}, among others: pip install 'darkroom[local]'"

        def command() -> None:
            """Run everything on this machine; the packages for that are not installed here."""
            raise StartRefused(reason)

    return command


app = typer.Typer(
    help="Darkroom: an upload becomes ready renditions, exactly once in effect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for name in LOCAL:
    app.command(name)(_local(name))
app.command("setup")(setup.setup)
app.command("token")(token.token)
app.command("sweep")(sweep.sweep)
app.command("status")(status.status)
app.command("why")(why.why)
app.command("verify")(verify.verify)
app.command("rebuild")(verify.rebuild)
app.command("reconcile")(reconcile.reconcile)
app.add_typer(dlq.app, name="dlq")


def main() -> None:
    """Run the command line; what stands in the way of a start is one message and exit code 2, not a traceback."""
    try:
        app()
    except (LocalServerError, StartRefused) as error:
        fail(str(error))
    except KafkaException as error:
        fail(f"Kafka (DARKROOM_KAFKA_BOOTSTRAP, DARKROOM_KAFKA_CONFIG): {error.args[0].str()}")
    except SystemExit as ended:
        # A number is how a command ends; a sentence is why it did not begin.
        if isinstance(ended.code, str):
            fail(ended.code)
        raise

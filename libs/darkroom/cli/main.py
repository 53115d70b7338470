"""The ``darkroom`` command: one file a group of commands; this one puts them together."""

import sys
from typing import NoReturn

import typer
from confluent_kafka import KafkaException
from rich.console import Console

from darkroom.cli import chaos, demo, dlq, reconcile, setup, status, sweep, token, up, verify, why
from darkroom.local.errors import LocalServerError
from darkroom.runtime.start import StartRefused

app = typer.Typer(
    help="Darkroom: an upload becomes ready renditions, exactly once in effect.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("up")(up.up)
app.command("demo")(demo.demo)
app.command("chaos")(chaos.chaos)
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
    """Run the command line; what stands in the way of a start is one message and exit code 1, not a traceback."""
    try:
        app()
    except (LocalServerError, StartRefused) as error:
        _refuse(str(error))
    except KafkaException as error:
        _refuse(f"Kafka (DARKROOM_KAFKA_BOOTSTRAP, DARKROOM_KAFKA_CONFIG): {error.args[0].str()}")


def _refuse(reason: str) -> NoReturn:
    console = Console(stderr=True)
    console.print("[bold red]Cannot start:[/]", end=" ")
    console.print(reason, highlight=False, soft_wrap=True, markup=False)
    sys.exit(1)

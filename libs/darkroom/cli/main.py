"""The ``darkroom`` command: one file a group of commands; this one puts them together."""

import sys

import typer
from rich.console import Console

from darkroom.cli import chaos, demo, dlq, reconcile, setup, status, token, up, verify, why
from darkroom.local.errors import LocalServerError

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
    except LocalServerError as error:
        Console(stderr=True).print(f"[bold red]Cannot start:[/] {error}", highlight=False, soft_wrap=True)
        sys.exit(1)

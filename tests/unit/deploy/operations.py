"""What the templates start with the `darkroom` command, held to the command itself."""

from collections.abc import Sequence

import typer

from darkroom.cli.main import app
from darkroom.cli.reconciler import ReconcilerSettings as GoesOn
from darkroom.ops.installation import OpsSettings


class ReconcilerSettings(OpsSettings, GoesOn):
    """All that a reconciler reads."""


def refused_options(arguments: Sequence[str]) -> set[str]:
    """What of a container's arguments is no command, or no option of it."""
    module, command, *rest = arguments
    known = getattr(typer.main.get_command(app), "commands", {})
    if module != "darkroom.cli" or command not in known:
        return {module, command}
    return {word for word in rest if word.startswith("--")} - {
        option for parameter in known[command].params for option in parameter.opts
    }

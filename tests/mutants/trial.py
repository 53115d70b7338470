"""One mutant's trial: its edits in a copy of the checkout, its tests run there, its verdict."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from mutants.catalogue import ROOT, DoesNotApply, Mutant

SECONDS = 300.0
"""For one run of pytest; a mutant may hang, and then its tests have noticed."""
PACKAGES = ("darkroom", "asset_api", "s3_bridge", "processor", "outbox_relay")
NOT_COPIED = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.log")
FAILED = re.compile(r"^FAILED (\S+?::.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(StrEnum):
    """What a trial found. Only ``KILLED`` is as it should be."""

    KILLED = "killed"
    SURVIVED = "survived"
    STALE = "does not apply"
    BROKEN = "broken"


@dataclass(frozen=True)
class Outcome:
    """``by`` names the test that failed, or says what is wrong with the mutant itself."""

    verdict: Verdict
    by: str
    seconds: float
    output: str = ""


class Copy:
    """A copy of the checkout in which pytest, and every process that a test starts, runs the copied code."""

    def __init__(self, folder: Path, *, environment: Mapping[str, str]) -> None:
        self.root = folder / "checkout"
        shutil.copytree(ROOT, self.root, ignore=NOT_COPIED)
        # Comes before the paths that the editable installation adds, which lead to the checkout itself.
        paths = os.pathsep.join(str(self.root / name) for name in ("libs", "services"))
        # Without cached byte code: an edit within a second of the last, of the same size, would not be seen.
        self._environment = {
            **environment,
            "PYTHONPATH": paths,
            "PYTHONDONTWRITEBYTECODE": "1",
            "DARKROOM_MACHINE_SHRINK": "no",
        }

    def check(self) -> None:
        """See that the copy's code is what runs.

        Raises:
            RuntimeError: a package is imported from somewhere else.

        """
        program = (
            f"import {', '.join(PACKAGES)}; print({', '.join(f'{name}.__file__' for name in PACKAGES)}, sep='\\n')"
        )
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.root,
            env=self._environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if strangers := [path for path in found if not Path(path).is_relative_to(self.root)]:
            raise RuntimeError(f"these would be tested instead of the copy: {strangers}")

    def pytest(self, tests: Sequence[str], *options: str, seconds: float = SECONDS) -> tuple[int | None, str]:
        """Run tests; gives pytest's exit code (None: it did not end in time) and what it said."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-rfE",
            "--tb=short",
            "-p",
            "no:cacheprovider",
            *options,
            *tests,
        ]
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output, _ = process.communicate()
                return None, output
            except BaseException:
                # Of a session of its own, so that Ctrl-C has not reached it.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, output

    def try_out(self, mutant: Mutant) -> Outcome:
        """Apply the mutant, run its tests, and put the code back."""
        began = time.monotonic()
        try:
            before = mutant.apply(self.root)
        except DoesNotApply as error:
            return Outcome(Verdict.STALE, str(error), 0.0)
        try:
            # In the order given, the likeliest first, so that most trials are short.
            code, output = self.pytest(mutant.tests, "-x", "-p", "no:randomly", "--timeout=90")
        finally:
            for path, text in before.items():
                path.write_text(text)
        verdict, by = judge(code, output)
        return Outcome(verdict, by, time.monotonic() - began, output)


def judge(code: int | None, output: str) -> tuple[Verdict, str]:
    """What pytest's end means for the mutant.

    A test must have failed: an error while collecting or in a fixture would say that the mutant does not even run.
    """
    if code == 0:
        return Verdict.SURVIVED, ""
    if failed := FAILED.search(output):
        return Verdict.KILLED, failed[1]
    # pytest-timeout ends the process without a summary.
    if code is None or "+ Timeout +" in output:
        return Verdict.KILLED, "time-out"
    return Verdict.BROKEN, f"pytest ended with {code} and no failed test"

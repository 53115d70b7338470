"""The mutants, as the TOML files beside this module tell them."""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
"""The checkout."""


class DoesNotApply(Exception):
    """The code is no longer what the mutant expects; the message says where."""


@dataclass(frozen=True)
class Edit:
    """One replacement in one file, whose path is relative to the checkout. ``find`` occurs there exactly once."""

    file: str
    find: str
    replace: str


@dataclass(frozen=True)
class Mutant:
    """One protection removed.

    ``why`` says what then goes wrong, ``invariant`` which of the numbered ones is broken ("-": none of them), and
    ``tests`` what pytest is given; one of them must fail.
    """

    name: str
    title: str
    why: str
    invariant: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]

    def apply(self, root: Path) -> dict[Path, str]:
        """Edit the tree under ``root``; gives the files' texts from before, to be written back.

        Raises:
            DoesNotApply: an edit's text is not in its file exactly once, or the result is no Python.

        """
        before: dict[Path, str] = {}
        after: dict[Path, str] = {}
        for edit in self.edits:
            path = root / edit.file
            if not path.is_file():
                raise DoesNotApply(f"{self.name}: there is no {edit.file}")
            text = after[path] if path in after else before.setdefault(path, path.read_text())
            if (times := text.count(edit.find)) != 1:
                raise DoesNotApply(f"{self.name}: {edit.file} holds {times} times, not once:\n{edit.find}")
            after[path] = text.replace(edit.find, edit.replace)
        for path, text in after.items():
            try:
                compile(text, str(path), "exec")
            except SyntaxError as error:
                raise DoesNotApply(f"{self.name}: {path.name} would be no Python: {error}") from error
        for path, text in after.items():
            path.write_text(text)
        return before


def load() -> list[Mutant]:
    """All mutants, by file and in the order in which each file tells them.

    Raises:
        ValueError: a name is told twice.

    """
    found = [
        _mutant(told) for path in sorted(FOLDER.glob("*.toml")) for told in tomllib.loads(path.read_text())["mutant"]
    ]
    names = [mutant.name for mutant in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"mutants told twice: {sorted(twice)}")
    return found


def _mutant(told: dict[str, Any]) -> Mutant:
    # What a multi-line string of TOML adds at its end is no part of the code.
    edits = tuple(
        Edit(edit["file"], edit["find"].removesuffix("\n"), edit["replace"].removesuffix("\n"))
        for edit in told.pop("edit")
    )
    return Mutant(**{**told, "edits": edits, "tests": tuple(told["tests"])})

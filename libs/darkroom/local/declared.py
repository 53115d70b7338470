"""Where the declarations under deploy/local are, and how their $names are filled in."""

from pathlib import Path
from string import Template

_HERE = Path(__file__).resolve().parent


def declared(name: str) -> Path:
    """The path of a file under deploy/local, in an installed wheel as in the repository."""
    installed = _HERE / "deploy" / "local"
    folder = installed if installed.is_dir() else _HERE.parents[2] / "deploy" / "local"
    return folder / name


def fill(name: str, **values: object) -> str:
    """The text of a declared file with every $name replaced; a name without a value is an error (KeyError)."""
    return Template(declared(name).read_text(encoding="utf-8")).substitute(values)

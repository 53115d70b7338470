"""The page on failure codes and the enum say the same."""

import re
from pathlib import Path

from darkroom.contracts.failures import FailureCode

PAGE = Path(__file__).parents[3] / "docs" / "failures.md"


def test_every_code_is_on_the_page_once_and_the_page_has_no_other() -> None:
    documented = re.findall(r"^\| `([a-z_]+)` \|", PAGE.read_text(), flags=re.MULTILINE)
    assert sorted(documented) == sorted(FailureCode)

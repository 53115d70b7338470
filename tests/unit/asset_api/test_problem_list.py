"""The documentation lists every type of problem, and no other."""

import re
from pathlib import Path

from asset_api.problems import Problems

LIST = Path(__file__).parents[3] / "docs" / "problems.md"


def test_each_type_is_documented_with_its_status_and_no_other() -> None:
    documented = re.findall(r"^\| `(\S+)` \| (\d{3}) \|", LIST.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted((kind.value.type, str(kind.value.status)) for kind in Problems)

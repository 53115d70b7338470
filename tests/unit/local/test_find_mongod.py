"""Which mongod is taken."""

from pathlib import Path

import pytest

from darkroom.local.errors import PieceMissingError
from darkroom.local.mongod import find_mongod


def _mongod(folder: Path, version: str) -> Path:
    binary = folder / "mongod"
    binary.write_text(f"#!/bin/sh\necho 'db version v{version}'\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize("version", ["6.0.5", "8.2.1", "10.0.0"])
def test_one_on_path_comes_first(tmp_path: Path, version: str) -> None:
    assert find_mongod(search_path=str(_mongod(tmp_path, version).parent)) == tmp_path / "mongod"


def test_one_inside_a_package_comes_next_and_may_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "some_package" / "db" / "bin" / "mongod"
    binary.parent.mkdir(parents=True)
    binary.touch(mode=0o644)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "old").mkdir()
    _mongod(tmp_path / "old", "5.0.31")
    assert find_mongod(search_path=str(tmp_path / "old"), package="some_package") == binary
    assert binary.stat().st_mode & 0o111 == 0o111


def test_a_platform_without_one_is_told_what_to_do(tmp_path: Path) -> None:
    old = _mongod(tmp_path, "4.4.29")
    with pytest.raises(PieceMissingError) as caught:
        find_mongod(search_path=str(tmp_path), package="no_such_package")
    for part in ("mongod", str(old), "DARKROOM_MONGO_URL"):
        assert part in str(caught.value)

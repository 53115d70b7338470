"""Room on the disk, and one user of a data folder at a time."""

from pathlib import Path

import pytest

from darkroom.local.disk import exclusive, require_space
from darkroom.local.errors import DataFolderInUseError, NoDiskSpaceError


def test_too_little_space_says_how_much_is_needed_and_where(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    with pytest.raises(NoDiskSpaceError) as caught:
        require_space(folder, 10**18, purpose="mongod")
    assert "mongod needs 1,000,000,000,000 MB" in str(caught.value)
    assert str(folder) in str(caught.value)


def test_enough_space_passes(tmp_path: Path) -> None:
    require_space(tmp_path, 1, purpose="mongod")


def test_a_held_folder_is_refused_until_it_is_let_go(tmp_path: Path) -> None:
    with exclusive(tmp_path), pytest.raises(DataFolderInUseError, match=str(tmp_path)), exclusive(tmp_path):
        pass
    with exclusive(tmp_path):
        pass

"""Kafka's jars are fetched once and verified always."""

import hashlib
import re
from pathlib import Path

import pytest

from darkroom.local.errors import FolderUnusableError, JarHashMismatchError
from darkroom.local.jars import Jar, cache_folder, declared_jars, ensure_jars

GOOD = b"the bytes that the list names"
JAR = Jar("org.example:thing:1.0", hashlib.sha256(GOOD).hexdigest())


class Source:
    """Stands in for Maven Central and counts what it is asked for."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.asked: list[str] = []

    def __call__(self, jar: Jar, path: Path) -> None:
        self.asked.append(jar.coordinate)
        path.write_bytes(self.content)


def test_a_missing_jar_is_fetched_once(tmp_path: Path) -> None:
    source = Source(GOOD)
    first = ensure_jars((JAR,), tmp_path, fetch=source)
    second = ensure_jars((JAR,), tmp_path, fetch=source)
    assert first == second == [tmp_path / "thing-1.0.jar"]
    assert first[0].read_bytes() == GOOD
    assert source.asked == ["org.example:thing:1.0"]
    assert list(tmp_path.iterdir()) == first


def test_a_wrong_download_is_refused_and_not_kept(tmp_path: Path) -> None:
    wrong = hashlib.sha256(b"other").hexdigest()
    with pytest.raises(JarHashMismatchError) as caught:
        ensure_jars((JAR,), tmp_path, fetch=Source(b"other"))
    for part in ("org.example:thing:1.0", wrong, JAR.sha256, "Try again"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_jar_in_the_cache_is_refused_by_name(tmp_path: Path) -> None:
    (path,) = ensure_jars((JAR,), tmp_path, fetch=Source(GOOD))
    path.write_bytes(b"other")
    source = Source(GOOD)
    with pytest.raises(JarHashMismatchError) as caught:
        ensure_jars((JAR,), tmp_path, fetch=source)
    for part in ("org.example:thing:1.0", str(path), hashlib.sha256(b"other").hexdigest(), JAR.sha256, "delete it"):
        assert part in str(caught.value)
    assert source.asked == []


def test_the_declared_list_is_whole() -> None:
    jars = declared_jars()
    assert len(jars) == len({jar.filename for jar in jars}) == 45
    assert all(re.fullmatch(r"[0-9a-f]{64}", jar.sha256) for jar in jars)
    assert "kafka_2.13-4.4.0.jar" in {jar.filename for jar in jars}


def test_the_cache_follows_xdg(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "darkroom"
    assert cache_folder({}).is_relative_to(Path.home())


def test_a_cache_that_cannot_be_written_is_named_with_the_way_to_another(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FolderUnusableError, match=r"file/cache .*XDG_CACHE_HOME"):
        ensure_jars((JAR,), tmp_path / "file" / "cache", fetch=Source(GOOD))

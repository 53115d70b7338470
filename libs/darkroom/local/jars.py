"""Kafka's jars: fetched once by Maven coordinate into a per-user cache, verified on every start."""

import contextlib
import hashlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from maven_artifact.artifact import Artifact
from maven_artifact.downloader import Downloader
from maven_artifact.requestor import RequestException, Requestor

from darkroom.local.declared import declared
from darkroom.local.disk import make_folder
from darkroom.local.errors import DownloadFailedError, JarHashMismatchError

DOWNLOAD_BYTES = 43_000_000
_THREADS = 8
_ATTEMPTS = 3
_CONNECT_READ_SECONDS = (10.0, 30.0)


@dataclass(frozen=True)
class Jar:
    """A jar by Maven coordinate (`group:artifact:version`) and the SHA-256 of its bytes, in hex."""

    coordinate: str
    sha256: str

    @property
    def filename(self) -> str:
        """`artifact-version.jar`, as Maven names it."""
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"


Fetch = Callable[[Jar, Path], None]


def declared_jars(path: Path | None = None) -> tuple[Jar, ...]:
    """The jars of a list (None: deploy/local/kafka/jars.tsv): a coordinate, a tab and a SHA-256 a line."""
    lines = (path or declared("kafka/jars.tsv")).read_text(encoding="utf-8").splitlines()
    return tuple(Jar(*line.split("\t")) for line in lines if line and not line.startswith("#"))


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where this user's caches of Darkroom are: XDG_CACHE_HOME, else the platform's place."""
    if given := environment.get("XDG_CACHE_HOME"):
        return Path(given) / "darkroom"
    home = Path.home()
    return (home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache") / "darkroom"


def ensure_jars(jars: tuple[Jar, ...], folder: Path, *, fetch: Fetch | None = None) -> list[Path]:
    """The paths of all jars in `folder`, each verified; those that are missing are fetched first.

    Raises JarHashMismatchError or DownloadFailedError, naming the jar, and FolderUnusableError.
    """
    if not all((folder / jar.filename).exists() for jar in jars):
        # A cache that is complete may be read-only.
        make_folder(folder, purpose="Kafka's jars", instead="XDG_CACHE_HOME=FOLDER")
    fetch = fetch or _fetch_from_maven
    # The downloader prints; redirect_stdout is process-wide, so it goes round the pool and not into each thread.
    with contextlib.redirect_stdout(io.StringIO()), ThreadPoolExecutor(max_workers=_THREADS) as pool:
        return list(pool.map(lambda jar: _ensure(jar, folder, fetch), jars))


def _ensure(jar: Jar, folder: Path, fetch: Fetch) -> Path:
    path = folder / jar.filename
    if path.exists():
        found = _sha256(path)
        if found != jar.sha256:
            raise JarHashMismatchError(
                f"{jar.coordinate}: {path} has SHA-256 {found}, but {jar.sha256} is expected. The file is damaged or "
                f"was changed: delete it and start again, and it is fetched anew."
            )
        return path
    # Beside its place, so that the rename is atomic: another process sees the whole verified jar or none.
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        fetched = Path(scratch) / jar.filename
        fetch(jar, fetched)
        found = _sha256(fetched)
        if found != jar.sha256:
            raise JarHashMismatchError(
                f"{jar.coordinate}: what was downloaded has SHA-256 {found}, but {jar.sha256} is expected. It was "
                f"thrown away. Try again; if it stays so, something between here and Maven Central changes downloads."
            )
        fetched.replace(path)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _PatientRequestor(Requestor):  # type: ignore[misc]  # the package has no types
    """The package's requestor waits for ever on a silent server; this one gives up."""

    def request(self, *args: object, **options: object) -> object:
        return super().request(*args, timeout=_CONNECT_READ_SECONDS, **options)


def _fetch_from_maven(jar: Jar, path: Path) -> None:
    downloader = Downloader()
    downloader.requestor = _PatientRequestor()
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            downloader.download(Artifact.parse(jar.coordinate), str(path))
        except (RequestException, OSError) as error:
            path.unlink(missing_ok=True)
            if attempt == _ATTEMPTS:
                reason = error.msg if isinstance(error, RequestException) else error
                raise DownloadFailedError(
                    f"{jar.coordinate}: could not be fetched from Maven Central in {_ATTEMPTS} attempts ({reason}). "
                    f"Check the network and the proxy settings, or use your own broker: DARKROOM_KAFKA_BOOTSTRAP."
                ) from error
        else:
            return

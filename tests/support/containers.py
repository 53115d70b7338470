"""Containers by podman, without a daemon, and stand-ins for the images that no registry gives here.

Everything is made as root with runc and without systemd, which works in a virtual machine and inside a container.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from darkroom.local import kafka
from darkroom.local.jars import cache_folder, declared_jars, ensure_jars

REPOSITORY = Path(__file__).resolve().parents[2]
BASE = "localhost/darkroom-test/base:bookworm"
PROGRAMS = ("podman", "runc", "debootstrap", "netavark", "aardvark-dns", "iptables")
SERVERS = ("mongo", "kafka", "aws")
PACKAGES = "podman runc buildah debootstrap iptables netavark aardvark-dns catatonit"

_STANDINS = REPOSITORY / "tests" / "containers" / "standins"
_CONF = """\
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
_BUILD = ("--isolation=chroot", "--network=host")


class CannotMakeImages(Exception):
    """The stand-in images cannot be made here; the message says which step failed and its last words."""


def reason_to_skip() -> str | None:
    """Why no container can run here; None if they can."""
    if os.geteuid() != 0:
        return "podman is used as root here, and this is another user"
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin:/usr/lib/podman:/usr/libexec/podman"
    missing = [program for program in PROGRAMS if shutil.which(program, path=path) is None]
    if missing:
        return f"no {', '.join(missing)}; on Debian: apt-get install --no-install-recommends {PACKAGES}"
    return None


@dataclass(frozen=True)
class Podman:
    """podman with settings of its own, kept in ``folder``; the machine's are not touched."""

    folder: Path

    def environment(self) -> dict[str, str]:
        """For podman and what calls it."""
        conf = self.folder / "containers.conf"
        conf.write_text(_CONF, encoding="utf-8")
        return {**os.environ, "CONTAINERS_CONF": str(conf)}

    def run(self, *arguments: str, seconds: float = 60.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``podman ARGUMENTS``; raises CalledProcessError with its output in the notes unless ``check`` is false."""
        return _run(["podman", *arguments], env=self.environment(), seconds=seconds, check=check)

    def make_base(self) -> str:
        """Debian with Python, as an image; made once on a machine (a minute), then found again.

        Raises:
            CannotMakeImages: debootstrap could not fetch the packages.

        """
        if self.run("image", "exists", BASE, check=False).returncode != 0:
            root = self.folder / "root"
            packages = "--include=python3,python3-venv,ca-certificates,libcurl4"
            try:
                _run(["debootstrap", "--variant=minbase", packages, "bookworm", str(root)], seconds=400)
                changes = _trust_what_this_machine_trusts(root)
                archive = self.folder / "root.tar"
                _run(["tar", "-C", str(root), "--exclude=./var/cache/apt/archives/*.deb", "-cf", str(archive), "."])
                self.run("import", *changes, str(archive), BASE, seconds=300)
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise CannotMakeImages(f"the base image: {_last_words(error)}") from error
            finally:
                shutil.rmtree(root, ignore_errors=True)
                (self.folder / "root.tar").unlink(missing_ok=True)
        return BASE

    def make_standins(self) -> dict[str, str]:
        """Images for mongo, kafka and aws, by these names.

        Raises:
            CannotMakeImages: a package or a jar could not be fetched.

        """
        context = self.folder / "standins"
        shutil.copytree(_STANDINS, context, dirs_exist_ok=True)
        for lock in ("build.lock", "servers.lock"):
            shutil.copy(REPOSITORY / "requirements" / lock, context)
        (context / "jars").mkdir(exist_ok=True)
        for jar in ensure_jars(declared_jars(), cache_folder() / f"kafka-{kafka._VERSION}"):
            shutil.copy(jar, context / "jars")
        made = {}
        for name in SERVERS:
            made[name] = f"localhost/darkroom-test/{name}:latest"
            try:
                self.run(
                    *("build", *_BUILD, "--quiet", "--layers", "--target", name, "--tag", made[name]),
                    *("--build-arg", f"BASE={self.make_base()}", str(context)),
                    seconds=300,
                )
            except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
                raise CannotMakeImages(f"{name}: {_last_words(error)}") from error
        return made


@dataclass(frozen=True)
class Compose:
    """deploy/compose.yaml as one project. ``variables`` are those that the file takes."""

    podman: Podman
    project: str
    variables: Mapping[str, str]

    def run(self, *arguments: str, seconds: float = 300.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``podman-compose ARGUMENTS``."""
        command = [sys.executable, "-m", "podman_compose", "--file", str(REPOSITORY / "deploy" / "compose.yaml")]
        # One build after another: each finds the stages that those before it made.
        command += ["--parallel", "1", "--project-name", self.project]
        command += [f"--podman-build-args={' '.join((*_BUILD, '--layers'))}"]
        env = {**self.podman.environment(), **self.variables}
        return _run([*command, *arguments], env=env, seconds=seconds, check=check)

    def containers(self, service: str, *, every: bool = False) -> list[str]:
        """The names of a service's running containers; ``every`` adds those that ended."""
        labels = ("com.docker.compose.project=" + self.project, "com.docker.compose.service=" + service)
        filters = [argument for label in labels for argument in ("--filter", f"label={label}")]
        told = self.podman.run("ps", *(["--all"] if every else []), *filters, "--format", "{{.Names}}").stdout
        return sorted(told.split())

    def remove(self) -> None:
        """Take everything down; by label too, since podman-compose forgets containers beyond the scale in the file."""
        self.run("down", "--volumes", "--timeout", "20", check=False)
        label = f"label=com.docker.compose.project={self.project}"
        for kind, listing, removal in (
            ("container", ["ps", "--all", "--quiet"], ["rm", "--force", "--volumes"]),
            ("network", ["network", "ls", "--quiet"], ["network", "rm", "--force"]),
            ("volume", ["volume", "ls", "--quiet"], ["volume", "rm", "--force"]),
        ):
            left = self.podman.run(*listing, "--filter", label).stdout.split()
            if left:
                self.podman.run(*removal, *left, seconds=120)
            still = self.podman.run(*listing, "--filter", label).stdout.split()
            assert not still, f"{kind} of {self.project} not removed: {still}"

    def logs(self, *, lines: int = 15) -> str:
        """The last lines of every container, to be read after a failure."""
        told = []
        names = self.podman.run("ps", "--all", "--filter", f"label=com.docker.compose.project={self.project}",
                                "--format", "{{.Names}} {{.Status}}").stdout  # fmt: skip
        for line in names.splitlines():
            done = self.podman.run("logs", "--tail", str(lines), line.split()[0], check=False)
            told.append(f"--- {line}\n{done.stdout}{done.stderr}")
        return "\n".join(told)


def _run(
    command: list[str], *, env: Mapping[str, str] | None = None, seconds: float = 60.0, check: bool = True
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
    )
    if check and done.returncode:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(_last_words(error))
        raise error
    return done


def _last_words(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return str(error)
    return f"{(error.stdout or '')[-1500:]}\n{(error.stderr or '')[-3000:]}".strip()


def _trust_what_this_machine_trusts(root: Path) -> list[str]:
    """Package indexes may be reached through a certificate that only this machine knows; gives podman's options."""
    bundle = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
    if not bundle:
        return []
    inside = root / bundle.lstrip("/")
    inside.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(bundle, inside)
    (root / "etc" / "pip.conf").write_text(f"[global]\ncert = {bundle}\n", encoding="utf-8")
    return ["--change", f"ENV SSL_CERT_FILE={bundle}"]

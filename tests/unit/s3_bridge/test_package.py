"""The function's zip: complete, small, the same every time."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from darkroom.local.deployment import DeploymentError, deploy, package_bridge, packaged_template

PROBE = """
import sys
sys.path.insert(0, sys.argv[1])
import s3_bridge.handler, darkroom.runtime.kafka
for module in (s3_bridge.handler, darkroom.runtime.kafka):
    assert module.__file__.startswith(sys.argv[1]), module.__file__
heavy = {"boto3", "pymongo", "structlog", "fastapi"} & set(sys.modules)
assert not heavy, heavy
"""


def test_the_same_source_gives_the_same_bytes() -> None:
    assert package_bridge() == package_bridge()


def test_the_handler_runs_from_the_zip_alone_with_the_functions_dependencies(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(package_bridge())) as archive:
        archive.extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_poller_and_the_rest_of_the_library_stay_out() -> None:
    names = zipfile.ZipFile(io.BytesIO(package_bridge())).namelist()
    assert "s3_bridge/poller.py" not in names
    assert not [name for name in names if name.startswith(("darkroom/local", "darkroom/outbox", "darkroom/inbox"))]
    assert names == sorted(names)


def test_dependencies_go_into_the_zip(tmp_path: Path) -> None:
    (tmp_path / "pydantic").mkdir()
    (tmp_path / "pydantic" / "__init__.py").write_text("")
    assert "pydantic/__init__.py" in zipfile.ZipFile(io.BytesIO(package_bridge(dependencies=tmp_path))).namelist()


def test_only_the_code_of_the_function_is_replaced() -> None:
    packaged = packaged_template("s3://bucket/key.zip")
    assert packaged.count("CodeUri: s3://bucket/key.zip") == 1
    assert "services/s3_bridge" not in packaged


def test_a_stack_whose_name_no_bucket_can_have_is_refused() -> None:
    with pytest.raises(DeploymentError, match="lower-case"):
        deploy(None, stack_name="Darkroom", kafka_bootstrap="b:1")

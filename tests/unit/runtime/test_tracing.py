"""Tracing is off unless a variable asks for it, and what then goes wrong is said in a sentence."""

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from darkroom.runtime.sampling import sampler
from darkroom.runtime.start import StartRefused
from darkroom.runtime.tracing import configure, wanted
from darkroom.tracing.traceparent import of_asset, parse

ROOT = Path(__file__).parents[3]
KNOW_THE_SDK = {"libs/darkroom/runtime/tracing.py", "libs/darkroom/runtime/sampling.py"}
ON = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
        {**ON, "OTEL_SDK_DISABLED": "true"},
        {**ON, "OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_it_is_off_unless_it_is_asked_for(environment: dict[str, str]) -> None:
    assert not wanted(environment)
    assert configure(service="test", environment=environment) is None


@pytest.mark.parametrize("name", ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"])
def test_either_endpoint_asks_for_it(name: str) -> None:
    assert wanted({name: "http://127.0.0.1:9"})


PROBE = """
import sys
import asset_api.server, outbox_relay.app, processor.app, notifier.app, s3_bridge.handler, s3_bridge.poller
from darkroom.runtime.tracing import tracing
with tracing(service="probe"):
    found = sorted(name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")))
assert not found, found
"""


def test_nothing_of_the_sdk_is_imported_while_it_is_off() -> None:
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, env={}, check=False)
    assert done.returncode == 0, done.stderr


MISSING = """
import sys
sys.modules["opentelemetry.exporter"] = None
from darkroom.runtime.start import start
from darkroom.runtime.tracing import tracing
def main():
    with tracing(service="probe"):
        raise AssertionError("it began")
start(main)
"""


def test_a_missing_package_is_named_with_the_way_to_get_it() -> None:
    done = subprocess.run([sys.executable, "-c", MISSING], capture_output=True, text=True, env=ON, check=False)
    assert done.returncode == 1
    assert "darkroom[telemetry]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:x"}, "OTEL_EXPORTER_OTLP_ENDPOINT.*no port"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.*scheme"),
        ({"OTEL_TRACES_SAMPLER": "sometimes"}, "OTEL_TRACES_SAMPLER"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "much"}, "OTEL_TRACES_SAMPLER_ARG"),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.1"}, "OTEL_TRACES_SAMPLER_ARG"),
    ],
)
def test_a_wrong_variable_is_named(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(StartRefused, match=named):
        configure(service="test", environment=ON | wrong)


def test_the_sdk_is_known_where_a_process_begins_and_nowhere_else() -> None:
    files = [path for top in ("libs", "services") for path in (ROOT / top).rglob("*.py")]
    knowing = {path.relative_to(ROOT).as_posix() for path in files if _imports_the_sdk(path)}
    assert knowing == KNOW_THE_SDK


def _imports_the_sdk(path: Path) -> bool:
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return any(name.startswith(("opentelemetry.sdk", "opentelemetry.exporter")) for name in names)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_a_share_of_assets_is_what_it_says(share: float) -> None:
    """The SDK's own sampler reads two bits that are the same in every UUID: of 10 % it would take none."""
    chosen = sampler("traceidratio", str(share))
    taken = Counter(chosen.should_sample(None, uuid4().int, "x").decision for _ in range(4000))
    assert taken[Decision.RECORD_AND_SAMPLE] / 4000 == pytest.approx(share, abs=0.04)


def test_who_sees_the_id_alone_decides_as_whoever_began_the_trace() -> None:
    api, bridge = sampler("parentbased_traceidratio", "0.3"), sampler("parentbased_traceidratio", "0.3")
    from opentelemetry.context import set_value

    from darkroom.tracing.spans import UNDECIDED

    decided = set()
    for _ in range(300):
        own = of_asset(str(uuid4()))
        assert own is not None
        parent = NonRecordingSpan(SpanContext(own.trace_id, own.span_id, True, TraceFlags(own.flags)))
        root = api.should_sample(None, own.trace_id, "POST").decision
        undecided = set_value(UNDECIDED, True, set_span_in_context(parent))
        assert bridge.should_sample(undecided, own.trace_id, "receive").decision is root
        # Without the mark the parent's flag counts, and says no.
        assert bridge.should_sample(set_span_in_context(parent), own.trace_id, "receive").decision is Decision.DROP
        decided.add(root)
    assert len(decided) == 2


def test_the_id_of_an_asset_is_its_trace_and_its_first_span() -> None:
    asset_id = "0f8fad5b-d9cb-469f-a165-70867728950e"
    own = of_asset(asset_id)
    assert str(own) == "00-0f8fad5bd9cb469fa16570867728950e-a16570867728950e-02"
    assert parse(str(own)) == own


def test_an_id_that_w3c_forbids_has_no_trace() -> None:
    assert of_asset("00000000-0000-0000-0000-000000000000") is None
    assert of_asset("0f8fad5b-d9cb-469f-0000-000000000000") is None


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", True),
        ("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", True),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", False),
        ("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", False),
        ("00-00000000000000000000000000000000-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", False),
        ("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", False),
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\n", False),
        ("", False),
        (None, False),
    ],
)
def test_a_traceparent_is_read_as_w3c_says(text: str | None, read: bool) -> None:
    assert (parse(text) is not None) is read

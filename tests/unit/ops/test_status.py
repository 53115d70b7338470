"""What of an installation's state somebody should look at."""

from datetime import UTC, datetime
from typing import Any

import pytest

from darkroom.life import Swept
from darkroom.ops.status import Partition, Service, Snapshot, Waiting, problems

GOOD: dict[str, Any] = {
    "services": [Service("http://a/readyz", {"status": "ok"})],
    "processors": 2,
    "partitions": [Partition(0, 10, 10)],
    "relays": {"r": 64},
    "letters": {"sqs": 0, "kafka": 0, "inbox": 0, "outbox": 0},
    "jobs": {
        "reconcile.objects": {"running": False, "found": {"lost_rendition": 2}, "failed": {}},
        "sweep": {"running": False, **vars(Swept())},
    },
}


def told(**changed: Any) -> list[str]:
    snapshot = Snapshot(datetime(2026, 3, 1, tzinfo=UTC), **{**GOOD, **changed})
    return [problem.what for problem in problems(snapshot, late=60)]


def test_an_installation_that_is_well_has_no_problem() -> None:
    assert told() == []
    assert told(unpublished=Waiting(3, 59.0), under_way={"UPLOADING": Waiting(5, 9999.0)}, backing_off=3) == []


def test_what_has_ended_comes_back_by_the_command_that_started_it() -> None:
    snapshot = Snapshot(datetime(2026, 3, 1, tzinfo=UTC), **{**GOOD, "services": [Service("http://a", {}, "refused")]})
    (problem,) = problems(snapshot, late=60)
    assert "Ctrl-C there, then `darkroom up`" in problem.mend


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        ({"processors": 0}, ["python -m processor"]),
        ({"leases_run_out": Waiting(2, 5.0)}, ["python -m processor", "darkroom reconcile --pass unfinished"]),
        ({"relays": {}}, ["python -m outbox_relay"]),
    ],
)
def test_what_is_to_be_started_is_told_with_how(changed: dict[str, Any], how: list[str]) -> None:
    (problem,) = problems(Snapshot(datetime(2026, 3, 1, tzinfo=UTC), **{**GOOD, **changed}), late=60)
    for command in how:
        assert command in problem.mend


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"unknown": {"Kafka": "no answer"}}, "Kafka could not be asked: no answer"),
        ({"services": [Service("http://a/readyz", {}, "503")]}, "http://a/readyz is not ready: 503"),
        ({"processors": 0}, "no processor"),
        ({"relays": {}}, "no relay is alive"),
        ({"relays": {"r": 60}, "shards_without_relay": 4}, "4 of 64 shards"),
        ({"unpublished": Waiting(3, 61.0)}, "oldest of 3 unpublished events waits for 61 s"),
        ({"leases_run_out": Waiting(2, 5.0)}, "2 leases have run out"),
        ({"under_way": {"PROCESSING": Waiting(1, 61.0)}}, "oldest PROCESSING asset is so for 61 s"),
        (
            {"under_way": {"PROCESSING": Waiting(1, 61.0)}, "partitions": [Partition(0, 10, 7)]},
            "3 records wait for the processors",
        ),
        ({"lost": {"lost_notification": 20}, "lost_sample": 23}, "20 of the 23 oldest unfinished"),
        ({"letters": {"sqs": 4, "kafka": None}}, "4 letters in SQS"),
        ({"letters": {"outbox": 1}}, "1 letters in the outbox"),
        ({"jobs": {"reconcile.objects": {"found": {"original_gone": 2}}}}, "left 2 of original_gone"),
        ({"jobs": {"reconcile.objects": {"failed": {"lost_rendition": 1}}}}, "left 1 of lost_rendition"),
        ({"jobs": {"sweep": vars(Swept(expired=5, failed=3))}}, "sweep left 3 of its steps"),
    ],
)
def test_what_is_wrong_is_told(changed: dict[str, Any], text: str) -> None:
    assert text in "\n".join(told(**changed))

"""One JSON object a line, ours and the libraries' alike, whoever writes beside them and wherever they go."""

import json
import os
import subprocess
import sys

PROGRAM = """
import logging, sys, threading
import structlog
from darkroom.runtime.logging import configure
configure(service="x", level="INFO")
log, foreign = structlog.get_logger("darkroom.a"), logging.getLogger("some.library")
structlog.contextvars.bind_contextvars(request_id="r-1")
"""


def run(program: str, *, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM + program]
    return subprocess.run(command, text=True, check=False, timeout=60, stdout=subprocess.PIPE, stderr=stderr)


def test_our_lines_and_those_of_libraries_have_the_same_fields() -> None:
    done = run('log.warning("ours", n=1); foreign.warning("the %s", "library\'s", extra={"n": 1}); log.debug("no")')
    ours, theirs = (json.loads(line) for line in done.stderr.splitlines())
    assert ours.keys() == theirs.keys() == {"service", "event", "request_id", "level", "timestamp", "n"}
    assert [line.pop("event") for line in (ours, theirs)] == ["ours", "the library's"]
    assert ours["timestamp"].endswith("Z")
    assert ours.pop("timestamp") <= theirs.pop("timestamp")
    assert ours == theirs == {"service": "x", "request_id": "r-1", "level": "warning", "n": 1}


def test_what_is_no_json_and_what_went_wrong_are_told_in_a_line() -> None:
    done = run(
        'import datetime\nlog.info("odd", at=datetime.date(2026, 1, 2), of={1: {2}}, half="\\udcff")\n'
        'try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception("failed")\n'
    )
    odd, failed = (json.loads(line) for line in done.stderr.splitlines())
    assert (odd["at"], odd["of"], odd["half"]) == ("2026-01-02", {"1": [2]}, "\udcff")
    assert failed["level"] == "error"
    assert failed["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_lines_of_many_threads_are_whole() -> None:
    done = run(
        "def tell(say):\n    for n in range(200):\n        say('x' * 500)\n"
        "threads = [threading.Thread(target=tell, args=(say,)) for say in (log.info, foreign.info) * 4]\n"
        "[one.start() for one in threads]; [one.join() for one in threads]\n"
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert len(lines) == 8 * 200


def test_a_log_that_nobody_reads_any_more_stops_no_work() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = run('log.error("lost"); foreign.error("lost"); print("done")', stderr=writer)
    os.close(writer)
    assert done.stdout == "done\n"


def test_what_cannot_be_printed_is_named_and_stops_no_work() -> None:
    done = run(
        "class Odd:\n    def __str__(self): raise RuntimeError('no str')\n    __repr__ = __str__\n"
        "deep = []\nfor _ in range(100_000): deep = [deep]\n"
        "for odd in (Odd(), [Odd()], {Odd(): 1}, 10**5000, deep):\n"
        "    log.warning('ours', v=odd); foreign.warning('theirs', extra={'v': odd})\n"
        "print('done')\n"
    )
    assert done.stdout == "done\n"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["ours", "theirs"] * 5
    assert {line["unprintable"] for line in lines} == {"RuntimeError", "ValueError", "RecursionError"}
    assert {line["level"] for line in lines} == {"warning"}


def test_a_caller_cannot_say_who_logs() -> None:
    (told,) = (json.loads(line) for line in run('log.info("a", service="y", level="z")').stderr.splitlines())
    assert (told["service"], told["level"]) == ("x", "info")

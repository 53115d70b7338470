"""Mutants must not rot: every one still applies to the code, and the tests that must kill it still exist."""

import re
from pathlib import Path

import pytest

from mutants.catalogue import ROOT, DoesNotApply, Edit, Mutant, load
from mutants.trial import Verdict, judge

MUTANTS = load()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_applies_and_names_tests_that_exist(mutant: Mutant, tmp_path: Path) -> None:
    for edit in mutant.edits:
        (tmp_path / edit.file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / edit.file).write_text((ROOT / edit.file).read_text())
    before = mutant.apply(tmp_path)
    assert all(path.read_text() != text for path, text in before.items())
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).exists(), test
        if name:
            last = re.escape(name.partition("[")[0].rpartition("::")[2])
            assert re.search(rf"^\s*(def|class) {last}\b|^{last} = ", (ROOT / file).read_text(), re.MULTILINE), test


def test_there_are_mutants_for_what_exactly_once_rests_on() -> None:
    assert len(MUTANTS) >= 15
    broken = {number for mutant in MUTANTS for number in re.findall(r"I\d+", mutant.invariant)}
    assert {f"I{number}" for number in range(1, 10)} <= broken


@pytest.mark.parametrize(("text", "says"), [("x = 1\n", "0 times"), ("a\na\n", "2 times"), ("a\n", "no Python")])
def test_a_mutant_that_does_not_apply_changes_nothing_and_says_why(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text(text)
    mutant = Mutant("m", "", "", "-", (Edit("m.py", "a", "def"),), ())
    with pytest.raises(DoesNotApply, match=says):
        mutant.apply(tmp_path)
    assert (tmp_path / "m.py").read_text() == text


@pytest.mark.parametrize(
    ("code", "output", "verdict", "by"),
    [
        (0, "3 passed", Verdict.SURVIVED, ""),
        (1, "FAILED tests/a.py::test_x[1 - 2] - AssertionError: y\n", Verdict.KILLED, "tests/a.py::test_x[1"),
        (1, "FAILED tests/a.py::test_x\n1 failed", Verdict.KILLED, "tests/a.py::test_x"),
        (1, "++++ Timeout ++++", Verdict.KILLED, "time-out"),
        (None, "", Verdict.KILLED, "time-out"),
        (1, "ERROR tests/a.py::test_x - fixture", Verdict.BROKEN, "pytest ended with 1 and no failed test"),
        (2, "ERROR tests/a.py", Verdict.BROKEN, "pytest ended with 2 and no failed test"),
        (4, "no such file", Verdict.BROKEN, "pytest ended with 4 and no failed test"),
    ],
)
def test_only_a_failed_test_kills(code: int | None, output: str, verdict: Verdict, by: str) -> None:
    assert judge(code, output) == (verdict, by)

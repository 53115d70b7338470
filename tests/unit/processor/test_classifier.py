"""A user's own classifier: what it may return, and what becomes of one that fails or hangs."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from processor import classifier
from processor.classifier import Classifier, ClassifierFailed, OnFailure, Picture

PICTURE = Picture(asset_id="a", content_type="image/jpeg", width=4, height=3, data=b"jpeg", labels={"kind": "photo"})


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a hanging function waits for; opened at the end, so that no thread is left."""
    made = threading.Event()
    yield made
    made.set()


def calling(function: Any, *, seconds: float = 5.0, limit: int = 2) -> Classifier:
    return Classifier(function, seconds=seconds, on_failure=OnFailure.SKIP, limit=limit)


def test_its_labels_are_taken_as_they_are() -> None:
    def classify(picture: Picture) -> Mapping[str, str]:
        return {"topic": f"{picture.width}x{picture.height} {picture.labels['kind']}"}

    for _ in range(5):
        assert calling(classify, limit=1).labels(PICTURE) == {"topic": "4x3 photo"}


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "NoneType"),
        ([("a", "b")], "list"),
        ({"Topic": "x"}, "lower-case"),
        ({"thumbhash": "x"}, "none of"),
        ({1: "x"}, "lower-case"),
        ({"topic": 1}, "must be a text"),
        ({"topic": "x" * 1001}, "1000 characters"),
        ({f"a{at}": "" for at in range(65)}, "at most 64"),
    ],
)
def test_what_is_no_labels_is_a_failure_that_says_so(answer: Any, says: str) -> None:
    with pytest.raises(ClassifierFailed, match=says):
        calling(lambda _: answer).labels(PICTURE)


def test_what_it_raises_is_a_failure_and_the_next_call_works() -> None:
    answers: list[Any] = [RuntimeError("no model"), {}]

    def classify(_: Picture) -> Mapping[str, str]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)

    one = calling(classify, limit=1)
    with pytest.raises(ClassifierFailed, match="RuntimeError: no model"):
        one.labels(PICTURE)
    assert one.labels(PICTURE) == {}


def test_one_that_hangs_fails_at_its_deadline_and_blocks_no_more_than_the_limit(gate: threading.Event) -> None:
    came_back = threading.Semaphore(0)

    def classify(_: Picture) -> Mapping[str, str]:
        gate.wait()
        came_back.release()
        return {}

    one = calling(classify, seconds=0.05, limit=2)
    for _ in range(2):
        with pytest.raises(ClassifierFailed, match=r"more than 0\.05 s"):
            one.labels(PICTURE)
    with pytest.raises(ClassifierFailed, match="have not come back"):
        one.labels(PICTURE)
    gate.set()
    for _ in range(2):
        assert came_back.acquire(timeout=5)


def test_a_function_is_found_by_its_path() -> None:
    found: object = classifier.load("processor.classifier:load")
    assert found is classifier.load


@pytest.mark.parametrize("path", ["processor.classifier", "processor.classifier:nothing", "no_such_module:f", ":f", ""])
def test_a_path_that_names_no_function_says_which_setting(path: str) -> None:
    with pytest.raises(ValueError, match="DARKROOM_CLASSIFIER"):
        classifier.load(path)

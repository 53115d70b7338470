"""What a client may send, and how it is normalised."""

import base64
import json
import re
from typing import Any

import pytest

from asset_api.problems import Problem, Problems
from asset_api.requests import EXTENSIONS, fingerprint, object_key, parse_idempotency_key, parse_upload

GOOD: dict[str, Any] = {"filename": "photo.jpg", "content_type": "image/jpeg", "size": 1234}
DIGEST = base64.b64encode(bytes(range(32))).decode()
LIMIT = 50_000_000


def parse(body: bytes | dict[str, Any]) -> Any:
    return parse_upload(body if isinstance(body, bytes) else json.dumps(body).encode(), max_upload_bytes=LIMIT)


def refusal(body: bytes | dict[str, Any]) -> Problem:
    with pytest.raises(Problem) as caught:
        parse(body)
    return caught.value


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("filename", "", "1 to 255"),
        ("filename", "x" * 256, "1 to 255"),
        ("filename", "../../etc/passwd", "without a path"),
        ("filename", "a\\b.jpg", "without a path"),
        ("filename", ".", "blanks, dots"),
        ("filename", "..", "blanks, dots"),
        ("filename", "  ", "blanks, dots"),
        ("filename", ". .\u3000...", "blanks, dots"),
        ("filename", "\u200b", "without width"),
        ("filename", "\ufeff .\u00ad\u2060", "without width"),
        ("filename", "a\x00b.jpg", r"U\+0000"),
        ("filename", "a\r\nX: y.jpg", "control character"),
        ("filename", "a\u2028b.jpg", "line separator"),
        ("filename", "photo\u202egpj.exe", "direction of writing"),
        ("filename", "e\u0301" * 256, "1 to 255 characters, not 256"),
        ("filename", "x" * 60_000, "1 to 255"),
        ("filename", 7, "string"),
        ("filename", None, "string"),
        ("content_type", "text/html", "one of image/jpeg"),
        ("content_type", "image/svg+xml", "one of image/jpeg"),
        ("content_type", "image/jpeg; charset=x", "one of image/jpeg"),
        ("size", 0, "greater than or equal to 1"),
        ("size", -1, "greater than or equal to 1"),
        ("size", LIMIT + 1, "at most 50000000"),
        ("size", 10**30, "."),
        ("size", "12", "integer"),
        ("size", 12.5, "integer"),
        ("size", True, "integer"),
        ("checksum_sha256", "abc", "32 bytes in base64"),
        ("checksum_sha256", base64.b64encode(b"x" * 31).decode(), "32 bytes in base64"),
        ("checksum_sha256", DIGEST.rstrip("="), "32 bytes in base64"),
        ("checksum_sha256", DIGEST + "\n", "32 bytes in base64"),
        ("checksum_sha256", "é" * 44, "32 bytes in base64"),
        ("owner_id", "somebody", "not a field"),
        ("reference", "", "1 to 128"),
        ("reference", "x" * 129, "1 to 128"),
        ("reference", " a", "blank"),
        ("reference", "a\nb", "control character"),
        ("reference", 7, "string"),
        ("reference", {"$gt": ""}, "string"),
        ("metadata", [], "object"),
        ("metadata", {f"m{n}": "" for n in range(17)}, "at most 16 entries"),
        ("metadata", {"": "a"}, "a letter and up to 39"),
        ("metadata", {"$where": "a"}, "a letter and up to 39"),
        ("metadata", {"a.b": "a"}, "a letter and up to 39"),
        ("metadata", {"a\n": "a"}, "a letter and up to 39"),
        ("metadata", {"x" * 41: "a"}, "a letter and up to 39"),
        ("metadata", {"a": "x" * 257}, "at most 256 characters"),
        ("metadata", {"a": "\0"}, "control character"),
    ],
)
def test_a_broken_rule_is_refused_by_the_name_of_its_field(field: str, value: object, says: str) -> None:
    problem = refusal({**GOOD, field: value})
    assert problem.kind is Problems.INVALID_REQUEST
    (error,) = problem.errors
    assert error["field"] == field
    assert re.search(says, error["message"])


def test_every_missing_field_is_named() -> None:
    assert [error["field"] for error in refusal({}).errors] == ["filename", "content_type", "size"]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", Problems.MALFORMED_BODY),
        (b"\x89PNG\r\n\x1a\n", Problems.MALFORMED_BODY),
        (b"{", Problems.MALFORMED_BODY),
        (b'{"filename": "\\ud800"}', Problems.MALFORMED_BODY),
        (b"[" * 60_000, Problems.MALFORMED_BODY),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, Problems.MALFORMED_BODY),
        (b'{"filename": "a.jpg", "content_type": "image/jpeg", "size": NaN}', Problems.INVALID_REQUEST),
        (b'{"filename": "a.jpg", "content_type": "image/jpeg", "size": 1e999}', Problems.INVALID_REQUEST),
        (b'{"filename": "a.jpg", "content_type": "image/jpeg", "size": ' + b"9" * 5000 + b"}", None),
        (b"null", Problems.INVALID_REQUEST),
        (b"[]", Problems.INVALID_REQUEST),
        (b'"text"', Problems.INVALID_REQUEST),
    ],
)
def test_what_is_no_request_ends_as_a_problem(body: bytes, kind: Problems | None) -> None:
    problem = refusal(body)
    assert problem.kind.value.status in (400, 422)
    assert kind is None or problem.kind is kind


def test_a_whole_number_is_one_however_it_is_written() -> None:
    assert fingerprint(parse({**GOOD, "size": float(GOOD["size"])})) == fingerprint(parse(GOOD))


def test_a_request_is_normalised() -> None:
    wanted = parse({**GOOD, "filename": "Cafe\u0301.JPG", "content_type": "Image/JPEG", "checksum_sha256": None})
    assert (wanted.filename, wanted.content_type, wanted.checksum_sha256) == ("Café.JPG", "image/jpeg", None)
    own = parse({**GOOD, "reference": "Cafe\u0301 7", "metadata": {"album": "a\u0301\n"}})
    assert (own.reference, own.metadata) == ("Café 7", {"album": "a\u0301\n"})
    assert parse({**GOOD, "filename": "👩‍🚀.png", "size": LIMIT, "checksum_sha256": DIGEST}).checksum_sha256 == DIGEST


def test_the_fingerprint_is_of_the_meaning() -> None:
    same = [
        b'{"filename":"photo.jpg","content_type":"image/jpeg","size":1234}',
        b'{ "size": 1234, "content_type": "IMAGE/jpeg", "filename": "photo.jpg", "checksum_sha256": null }',
        b'{"metadata":{},"reference":null,"filename":"photo.jpg","content_type":"image/jpeg","size":1234}',
    ]
    assert len({fingerprint(parse(body)) for body in same}) == 1
    others: list[dict[str, Any]] = [
        {"filename": "Photo.jpg"},
        {"content_type": "image/png"},
        {"size": 1235},
        {"checksum_sha256": DIGEST},
        {"reference": "order-1"},
        {"metadata": {"a": "1"}},
        {"metadata": {"a": "2"}},
    ]
    assert len({fingerprint(parse({**GOOD, **other})) for other in ({}, *others)}) == 8


@pytest.mark.parametrize(("content_type", "extension"), EXTENSIONS.items())
def test_an_original_has_a_key_of_its_own(content_type: str, extension: str) -> None:
    assert object_key("id", content_type) == f"assets/id/original.{extension}"


@pytest.mark.parametrize(
    ("field", "key"),
    [
        ("abc", "abc"),
        ('"abc"', "abc"),
        ('"' + '\\"' * 255 + '"', '"' * 255),
        ("ABC", "ABC"),
        (" abc ", "abc"),
        ('"a\\"b\\\\c"', 'a"b\\c'),
        ('a"b', 'a"b'),
        ("x" * 255, "x" * 255),
        ('{"$gt":""}', '{"$gt":""}'),
        ("$where", "$where"),
    ],
)
def test_a_key_is_opaque_and_may_be_quoted(field: str, key: str) -> None:
    assert parse_idempotency_key([field]) == key


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [""],
        [" "],
        ['""'],
        ["x" * 256],
        ["x" * 10_000],
        ["a b"],
        ["a\x01b"],
        ["é"],
        ['"abc'],
        ['"a"b"'],
        ['"a\\b"'],
        ['"abc";p=1'],
        ['"a b"'],
        ['"' + "x" * 256 + '"'],
        ["a", "a"],
        ["a, a"],
    ],
)
def test_anything_else_is_no_key(fields: list[str]) -> None:
    with pytest.raises(Problem) as caught:
        parse_idempotency_key(fields)
    assert caught.value.kind is (Problems.INVALID_KEY if fields else Problems.MISSING_KEY)


def test_svg_and_nothing_are_refused_and_what_phones_write_is_taken() -> None:
    for content_type in ("image/heic", "image/heif", "image/avif"):
        assert parse({**GOOD, "content_type": content_type}).content_type == content_type
    for broken in ({"content_type": "image/svg+xml"}, {"size": 0}):
        assert refusal({**GOOD, **broken}).kind is Problems.INVALID_REQUEST

"""What is secret does not reach the log, whoever logs it and however it is written."""

import ast
import json
import logging
import subprocess
import sys
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from pydantic import SecretStr

from darkroom.runtime.logging import OWN, configure
from darkroom.runtime.redaction import HIDDEN, Redactor, secrets_in
from support.markdown import ROOT

LOGGING = {
    "debug",
    "info",
    "warning",
    "error",
    "exception",
    "critical",
    "log",
    "bind",
    "bind_contextvars",
    "bound_contextvars",
}

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
SIGNATURE = "6f1ed002ab5595859014ebf0951522d9d1b2a3c4e5f60718293a4b5c6d7e8f90"
SIGNED = f"https://b.s3.eu-west-1.amazonaws.com/assets/x/original.jpg?X-Amz-Credential=AKIAEXAMPLE%2F20260101&X-Amz-Signature={SIGNATURE}"
KEY = "3f0c8d1e-upload-of-my-holiday"

TEXTS = [
    (TOKEN, TOKEN),
    (f"Authorization: Bearer {TOKEN}", TOKEN),
    (f"GET /assets/{TOKEN[:40]} HTTP/1.1", TOKEN[:40]),
    (f"token={quote(TOKEN)}&x=1", TOKEN),
    ("Bearer opaque-token-12345", "opaque-token-12345"),
    (SIGNED, SIGNATURE),
    (SIGNED, "AKIAEXAMPLE"),
    (f'"GET /b/assets/x?X-Amz-Signature={SIGNATURE}&a=b HTTP/1.1" 200', SIGNATURE),
    (f"next={quote(SIGNED, safe='')}", SIGNATURE),
    (f"next={quote(quote(SIGNED, safe=''), safe='')}", SIGNATURE),
    (f"Signature:\n{SIGNATURE}", SIGNATURE),
    (f"AWS4-HMAC-SHA256 Credential=AKIA/x, SignedHeaders=host, Signature={SIGNATURE}", SIGNATURE),
    ("x-amz-security-token:IQoJb3JpZ2luX2VjEA", "IQoJb3JpZ2luX2VjEA"),
    ("mongodb://user:pa55%2Fword@host:27017/?authSource=admin", "pa55"),
    ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ("{'webhook-signature': 'v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE='}", "g0hM9SsE"),
    (f'{{"findAndModify": "assets", "query": {{"idempotency_key": "{KEY}", "owner_id": "alice"}}}}', KEY),
    (f"{{'idempotency_key': '{KEY}'}}", KEY),
    (
        f'{{"find": "assets", "filter": {{"idempotency_key": {{"$in": ["another]", "{KEY}"]}}, "owner_id": "alice"}}}}',
        KEY,
    ),
    (json.dumps(json.dumps({"idempotency_key": {"$in": ["another", KEY]}})), KEY),
    (f'{{"filter": {{"idempotency_key": {{"$in": ["another", "{KEY}', KEY),
    (f"{{'idempotency_key': {{'$in': ['another', '{KEY}']}}}}", KEY),
    (f"b'Idempotency-Key': b'{KEY}'", KEY),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----", "MIIEow"),
    ('{"sasl.password": "hunter22"}', "hunter22"),
]


@pytest.mark.parametrize(("text", "secret"), TEXTS)
def test_a_text_of_a_secrets_form_is_hidden_wherever_it_is(text: str, secret: str) -> None:
    hidden = Redactor().text(f"before {text} after")
    assert secret not in hidden
    assert HIDDEN in hidden
    assert hidden.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "asset_ready",
        "0f8fad5b-d9cb-469f-a165-70867728950e",
        "0f8fad5bd9cb469fa16570867728950e",
        "https://collector:4318/v1/traces",
        "mongodb://localhost:27017/darkroom",
        "assets/0f8fad5b-d9cb-469f-a165-70867728950e/original.jpg",
        "the tokens of this owner are used up",
        "sha256=47DEQpj8HBSa-/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_fields_that_are_called_secrets_are_hidden_at_any_depth() -> None:
    event = {
        "event": "x",
        "authorization": "a b",
        "nested": {"headers": [{"Cookie": "c=d"}, ("Set-Cookie", b"raw")], "token": "short"},
        "idempotency_key": KEY,
        "count": 3,
        "tokens": 4,
        "status": None,
    }
    hidden = Redactor().fields(event)
    assert hidden["authorization"] == HIDDEN
    assert hidden["nested"]["headers"][0] == {"Cookie": HIDDEN}
    assert hidden["nested"]["token"] == HIDDEN
    assert (hidden["count"], hidden["tokens"], hidden["status"]) == (3, 4, None)
    assert KEY not in json.dumps(hidden)
    assert hidden["idempotency_key"].startswith(KEY[:4])


def test_names_within_a_value_are_looked_through_too() -> None:
    hidden = Redactor(["the-given-one"]).fields({"v": {"the-given-one": 1, TOKEN: [{f"Bearer {TOKEN}": 2}]}})
    assert "the-given-one" not in str(hidden)
    assert TOKEN not in str(hidden)


def test_the_processs_own_secrets_are_hidden_as_they_are_and_as_urls_and_json_write_them() -> None:
    settings = {
        "mongo_url": SecretStr("mongodb://u:p%26ss%2Fword@h/"),
        "jwt_secret": SecretStr('a "quoted" secret+of&32=bytes'),
        "kafka_config": {"sasl.password": "kafka pass", "client.id": "darkroom"},
        "bucket": "photos",
    }
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
        "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=a,x-api-key=the%20key%20of%20traces",
        "PATH": "/bin",
    }
    found = secrets_in(settings, environment)
    redactor = Redactor(found)
    for secret in (
        "p&ss/word",
        "p%26ss%2Fword",
        'a "quoted" secret+of&32=bytes',
        "kafka pass",
        "wJalrXUtnFEMI/K7MDENG",
    ):
        for written in (secret, quote(secret, safe=""), quote(quote(secret, safe=""), safe="")):
            assert secret not in redactor.text(f"x {written} y")
            assert written not in redactor.text(f"x {written} y")
    assert redactor.text("photos at h by darkroom") == "photos at h by darkroom"


PROGRAM = f"""
import logging, sys
import boto3, structlog, httpx
from botocore.config import Config
from darkroom.runtime.logging import configure
from darkroom.runtime.redaction import Redactor
configure(service="x", level="DEBUG", libraries=sys.argv[1] or None, redactor=Redactor(["wJalrXUtnFEMI"]))
log = structlog.get_logger("processor.process")
log.debug("own_debug", url={SIGNED!r}, deep={{"authorization": {TOKEN!r}}})
try:
    raise ValueError("refused: Bearer " + {TOKEN!r})
except ValueError:
    log.exception("failed")
logging.getLogger("pymongo.command").debug("{{'find': 'assets', 'filter': {{'idempotency_key': '{KEY}'}}}}")
logging.getLogger("uvicorn.error").warning("Invalid request: /assets?token={TOKEN}")
once = Config(retries=dict(total_max_attempts=1), connect_timeout=0.2)
s3 = boto3.client("s3", endpoint_url="http://127.0.0.1:9", aws_access_key_id="AKIAEXAMPLE",
    aws_secret_access_key="wJalrXUtnFEMI", region_name="eu-west-1", config=once)
url = s3.generate_presigned_url("get_object", Params=dict(Bucket="bucket", Key="k"))
for call in (lambda: s3.get_object(Bucket="bucket", Key="k"), lambda: httpx.get(url.replace("http:", "http:", 1))):
    try:
        call()
    except Exception as error:
        log.warning("call_failed", error=str(error))
print(url.partition("X-Amz-Signature=")[2].partition("&")[0] or url.partition("Signature=")[2].partition("&")[0])
"""


@pytest.mark.parametrize("libraries", ["", "DEBUG"])
def test_drivers_tell_no_secret_at_any_level(libraries: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, libraries], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
    names = {line["event"] for line in lines}
    assert {"own_debug", "failed", "call_failed"} <= names
    assert any(line["level"] == "debug" for line in lines)
    # Drivers' own lines are there when they are asked for, and only then.
    assert ("StringToSign" in done.stderr) is (libraries == "DEBUG")
    for secret in (TOKEN, TOKEN.split(".")[2], SIGNATURE, KEY, "wJalrXUtnFEMI", done.stdout.strip()):
        assert secret not in done.stderr, next(line for line in lines if secret in json.dumps(line))


def test_below_info_libraries_are_silent_unless_asked() -> None:
    before, own = (logging.root.handlers[:], logging.root.level), structlog.get_config()
    levels = {name: logging.getLogger(name).level for name in (*OWN, "httpx", "httpcore")}
    try:
        configure(service="x", level="DEBUG")
        assert not logging.getLogger("botocore.auth").isEnabledFor(logging.DEBUG)
        assert not logging.getLogger("httpx").isEnabledFor(logging.INFO)
        assert logging.getLogger("processor.process").isEnabledFor(logging.DEBUG)
        configure(service="x", level="WARNING")
        assert not logging.getLogger("botocore").isEnabledFor(logging.INFO)
    finally:
        structlog.configure(**own)
        logging.root.handlers[:], level = before
        logging.root.setLevel(level)
        for name, was in levels.items():
            logging.getLogger(name).setLevel(was)


def own_fields() -> dict[str, str]:
    """Every field of the code's own log lines, with a place where it is written."""
    found: dict[str, str] = {}
    for path in (path for folder in ("libs", "services") for path in sorted((ROOT / folder).rglob("*.py"))):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or ast.unparse(node.func).rpartition(".")[2] not in LOGGING:
                continue
            given = [word for word in node.keywords if word.arg not in (None, "extra")]
            extras = [word.value for word in node.keywords if word.arg == "extra"]
            names = [word.arg for word in given if word.arg is not None]
            names += [
                ast.literal_eval(key) for extra in extras if isinstance(extra, ast.Dict) for key in extra.keys if key
            ]
            found |= dict.fromkeys(names, f"{path.relative_to(ROOT)}:{node.lineno}")
    return found


def test_no_field_of_our_own_lines_is_hidden_for_its_name() -> None:
    fields = own_fields()
    assert {"asset_id", "rejected_originals", "reason", "route"} <= fields.keys()
    shown = Redactor().fields(dict.fromkeys(fields, "tag"))
    assert {name: place for name, place in fields.items() if shown[name] != "tag"} == {}

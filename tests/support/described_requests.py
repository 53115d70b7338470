"""For schemathesis: what its requests must be beside valid to be accepted. Named by SCHEMATHESIS_HOOKS."""

import re
import uuid
from typing import Any

import schemathesis

from asset_api.requests import KEY_PATTERNS

KEY = "Idempotency-Key"


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case[Any], kwargs: dict[str, Any]) -> None:
    """A key that was never used: no document can say that each request needs its own."""
    plain, quoted = KEY_PATTERNS
    if not case.headers or not isinstance(key := case.headers.get(KEY), str):
        return
    if re.fullmatch(plain, key):
        case.headers[KEY] = (uuid.uuid4().hex + key)[: max(32, len(key))]
    elif re.fullmatch(quoted, key):
        case.headers[KEY] = f'"{uuid.uuid4().hex}"'

"""The ways out: e-mail through SES, and a webhook signed by Standard Webhooks."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

import httpx
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
)
from standardwebhooks import Webhook

from notifier.notice import Notice, mail, webhook_body

ANSWER_BYTES, ANSWER_SECONDS = 64 * 1024, 5.0
"""Of a receiver's answer nothing matters but its status; more than this is not waited for."""
LONGEST_WAIT = 3600.0
"""Seconds. A receiver may ask to be left alone for so long, and no longer."""


class Refused(Exception):
    """This notification will never be taken; asking again cannot help."""


class NotSent(Exception):
    """It certainly did not arrive, and may do so another time. ``wait`` is the receiver's wish in seconds, if any."""

    def __init__(self, reason: str, *, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class InDoubt(Exception):
    """It may have arrived: the answer was lost."""


class Unavailable(Exception):
    """The channel takes nothing from anybody at present; ``probe`` raises for as long as this lasts."""

    def __init__(self, server: str, probe: Callable[[], object]) -> None:
        super().__init__(f"{server} cannot be used")
        self.server = server
        self.probe = probe


class Channel(Protocol):
    """One way to tell. ``repeatable``: the receiver knows a second delivery of the same event for what it is."""

    @property
    def name(self) -> str: ...
    @property
    def repeatable(self) -> bool: ...
    def send(self, notice: Notice) -> str:
        """Tell it once; gives the receiver's reference.

        Raises:
            Refused, NotSent, InDoubt, Unavailable: see there.

        """


class Email:
    """One e-mail for each event. SES has no idempotency token, so one whose fate is unknown is not simply repeated."""

    name = "email"

    def __init__(self, client: Any, *, sender: str, to: str, resend_in_doubt: bool) -> None:
        self._client = client
        self._sender = sender
        self._to = to
        self.repeatable = resend_in_doubt

    def send(self, notice: Notice) -> str:
        """Send it through SES; gives SES's message id."""
        to = self._to.replace("{owner_id}", notice.owner_id)
        if to.count("@") != 1 or any(mark in to for mark in " \t\r\n<>,;"):
            raise Refused(f"{to!r} is no e-mail address")
        made = mail(notice)
        try:
            answer = self._client.send_email(
                FromEmailAddress=self._sender,
                Destination={"ToAddresses": [to]},
                Content={
                    "Simple": {
                        "Subject": {"Data": made.subject, "Charset": "UTF-8"},
                        "Body": {
                            "Text": {"Data": made.text, "Charset": "UTF-8"},
                            "Html": {"Data": made.html, "Charset": "UTF-8"},
                        },
                    }
                },
                EmailTags=[{"Name": "darkroom-event-id", "Value": notice.event_id}],
            )
        except ClientError as error:
            raise self._translated(error) from error
        except (EndpointConnectionError, ConnectTimeoutError, NoCredentialsError) as error:
            raise Unavailable("SES", self.probe) from error
        except BotoCoreError as error:
            raise InDoubt(str(error)) from error
        return str(answer["MessageId"])

    def probe(self) -> None:
        """Ask whether this account may send; whatever this raises means that it cannot now."""
        if self._client.get_account().get("SendingEnabled") is False:
            raise RuntimeError("SES has stopped this account's sending")

    def _translated(self, error: ClientError) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in ("TooManyRequestsException", "ThrottlingException", "LimitExceededException") or status >= 500:
            return NotSent(f"SES: {code}")
        if code in ("MessageRejected", "BadRequestException"):
            return Refused(f"SES: {error}")
        # The sender is not verified, the account is suspended, the role may not send: nobody's mail would go.
        return Unavailable("SES", self.probe)


class SignedWebhook:
    """A POST signed by Standard Webhooks; its ``webhook-id`` is the event's id, by which receivers know repetitions."""

    name = "webhook"
    repeatable = True

    def __init__(self, client: httpx.Client, *, url: str, secret: str) -> None:
        self._client = client
        self._url = url
        self._signer = Webhook(secret)

    def send(self, notice: Notice) -> str:
        """Post it; gives the status of the answer."""
        body, now = webhook_body(notice), datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": notice.event_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(notice.event_id, now, body),
        }
        try:
            with self._client.stream("POST", self._url, content=body.encode(), headers=headers) as answer:
                _pass_over(answer)
        except httpx.HTTPError as error:
            raise NotSent(f"{type(error).__name__}: {error}") from error
        if answer.is_success:
            return str(answer.status_code)
        if answer.status_code == 410:
            raise Refused("410: the receiver wants no more webhooks")
        raise NotSent(f"the receiver answered {answer.status_code}", wait=_retry_after(answer))


def _pass_over(answer: httpx.Response) -> None:
    """Take what else a receiver says off the connection, so that it can be used again; not all that one may send."""
    passed, ends = 0, time.monotonic() + ANSWER_SECONDS
    # The status has been told by then, whatever becomes of the rest.
    with suppress(httpx.HTTPError):
        for chunk in answer.iter_raw():
            passed += len(chunk)
            if passed > ANSWER_BYTES or time.monotonic() > ends:
                return


def _retry_after(answer: httpx.Response) -> float | None:
    given = answer.headers.get("retry-after", "")
    return min(float(given), LONGEST_WAIT) if given.isascii() and given.isdigit() else None

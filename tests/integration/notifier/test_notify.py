"""One event, told once on every channel, whatever happens on the way."""

import gzip
import itertools
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from darkroom.contracts.envelope import STREAM_SOURCE, Event, to_record
from darkroom.inbox.consumer import Delivery, Finished, Later
from darkroom.inbox.outage import Outage
from notifier.channels import Email, SignedWebhook
from notifier.journal import Journal, State
from notifier.notice import Notice
from support import events
from support.servers import aws_client

from .conftest import SENDER, Mailbox, Receiver, World, delivery

SENT = {"email": State.SENT, "webhook": State.SENT}


def test_ready_is_told_by_mail_and_webhook_with_the_file_s_name_and_a_link(
    world: World, receiver: Receiver, mailbox: Mailbox
) -> None:
    change = events.registered(owner_id=world.owner, filename="holiday.jpg")
    assert world.notifier(delivery(change.event)) == Finished()
    event = world.ready(change.after)

    assert world.notifier(delivery(event)) == Finished()

    [mail] = mailbox.mails
    assert mail["Subject"] == "holiday.jpg is ready"
    assert "X-Amz-Expires=86400" in mail["BodyText"]
    assert f"assets/{event.asset_id}/thumb.jpg" in mail["BodyText"]
    [(webhook_id, body)] = receiver.taken
    assert webhook_id == event.id
    assert body["type"] == "asset.ready"
    assert body["data"]["filename"] == "holiday.jpg"
    assert world.rows(event) == SENT


def test_failed_is_told_with_its_reason(world: World, receiver: Receiver, mailbox: Mailbox) -> None:
    event = world.failed()
    assert world.notifier(delivery(event)) == Finished()
    assert "cannot be decoded" in mailbox.mails[0]["BodyText"]
    assert receiver.taken[0][1]["data"]["failure"]["code"] == "corrupt_or_truncated"


def test_a_redelivery_tells_nobody_again(world: World, receiver: Receiver, mailbox: Mailbox) -> None:
    event = world.ready()
    for _ in range(3):
        assert world.notifier(delivery(event)) == Finished()
    assert len(mailbox.mails) == 1
    assert receiver.ids == {event.id: 1}


def test_other_events_are_passed_over(world: World, receiver: Receiver, mailbox: Mailbox) -> None:
    event = events.step(world.asset(), events.processing()).event
    assert world.notifier(delivery(event)) == Finished()
    assert (receiver.taken, mailbox.mails) == ([], [])


def test_a_record_that_is_no_event_is_passed_over(world: World) -> None:
    assert world.notifier(Delivery("assets.events", 0, 7, b"key", b"{", [], owner="o")) == Finished()


def test_a_receiver_that_fails_is_asked_again_and_the_mail_is_not_repeated(
    world: World, receiver: Receiver, mailbox: Mailbox
) -> None:
    receiver.statuses = [500, 204]
    event = world.ready()
    verdict = world.notifier(delivery(event))
    assert isinstance(verdict, Later)
    assert world.rows(event) == {"email": State.SENT, "webhook": State.NOT_SENT}
    _now(world, event)
    assert world.notifier(delivery(event)) == Finished()
    assert len(mailbox.mails) == 1
    assert receiver.ids == {event.id: 1}
    assert world.rows(event) == SENT


def test_a_receiver_s_retry_after_is_kept_to(world: World, receiver: Receiver) -> None:
    receiver.statuses, receiver.headers = [429], {"Retry-After": "120"}
    verdict = world.notifier(delivery(world.ready()))
    assert isinstance(verdict, Later)
    assert verdict.seconds == 120


def test_a_receiver_that_never_answers_well_is_given_up(world: World, receiver: Receiver) -> None:
    receiver.statuses = [503]
    event = world.ready()
    for _ in range(2):
        assert isinstance(world.notifier(delivery(event)), Later)
        _now(world, event)
    assert world.notifier(delivery(event)) == Finished()
    assert world.inbox_state(event) == "DEAD"
    assert world.rows(event) == {"email": State.SENT, "webhook": State.GIVEN_UP}
    assert world.notifier(delivery(event)) == Finished()
    assert receiver.asked == 3


def test_a_receiver_that_is_gone_is_asked_once(world: World, receiver: Receiver) -> None:
    receiver.statuses = [410]
    event = world.ready()
    assert world.notifier(delivery(event)) == Finished()
    assert world.rows(event)["webhook"] == State.REFUSED


def test_a_redirect_is_not_followed(world: World, receiver: Receiver) -> None:
    receiver.statuses, receiver.headers = [302], {"Location": receiver.url}
    assert isinstance(world.notifier(delivery(world.ready())), Later)
    assert receiver.asked == 1


def test_an_owner_without_an_address_is_refused_and_recorded(world: World) -> None:
    world.owner = "user-7"
    event = world.ready()
    assert world.notifier(delivery(event)) == Finished()
    assert world.rows(event) == {"email": State.REFUSED, "webhook": State.SENT}


def test_a_mail_whose_worker_died_while_sending_is_in_doubt_and_not_repeated(
    world: World, mailbox: Mailbox, receiver: Receiver
) -> None:
    event = world.ready()
    _die_while_sending(world, event)
    assert world.notifier(delivery(event)) == Finished()
    assert mailbox.mails == []
    assert world.rows(event) == {"email": State.IN_DOUBT, "webhook": State.SENT}
    assert receiver.ids == {event.id: 1}


def test_a_mail_in_doubt_is_repeated_where_the_settings_say_so(world: World, ses: Any, mailbox: Mailbox) -> None:
    event = world.ready()
    _die_while_sending(world, event)
    resending = Email(ses, sender=SENDER, to="{owner_id}", resend_in_doubt=True)
    assert replace(world.notifier, channels=[resending])(delivery(event)) == Finished()
    assert len(mailbox.mails) == 1
    assert world.rows(event)["email"] == State.SENT


def test_an_answer_of_ses_that_is_lost_leaves_the_mail_in_doubt(world: World, ses: Any, mailbox: Mailbox) -> None:
    class AnswerLost:
        def send_email(self, **request: Any) -> None:
            ses.send_email(**request)
            raise ReadTimeoutError(endpoint_url="ses")

    event = world.ready()
    channel = Email(AnswerLost(), sender=SENDER, to="{owner_id}", resend_in_doubt=False)
    for _ in range(2):
        assert replace(world.notifier, channels=[channel])(delivery(event)) == Finished()
    assert len(mailbox.mails) == 1
    assert world.rows(event)["email"] == State.IN_DOUBT


def test_while_ses_is_out_of_reach_everybody_waits_and_no_attempt_is_spent(world: World) -> None:
    nowhere = aws_client("sesv2", "http://127.0.0.1:9")
    event = world.ready()
    channel = Email(nowhere, sender=SENDER, to="{owner_id}", resend_in_doubt=False)
    for _ in range(5):
        with pytest.raises(Outage, match="SES"):
            replace(world.notifier, channels=[channel])(delivery(event))
    row = world.db.consumer_inbox.find_one({"event_id": event.id})
    assert row is not None
    assert row["attempts"] == 0
    assert world.notifier(delivery(event)) == Finished()
    assert world.rows(event) == SENT


def test_a_sender_that_is_not_verified_is_everybody_s_trouble(world: World, ses: Any, mailbox: Mailbox) -> None:
    class NotVerified:
        def send_email(self, **_: Any) -> None:
            from botocore.exceptions import ClientError

            raise ClientError(
                {"Error": {"Code": "MailFromDomainNotVerifiedException"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
                "SendEmail",
            )

        get_account = ses.get_account

    channel = Email(NotVerified(), sender=SENDER, to="{owner_id}", resend_in_doubt=False)
    with pytest.raises(Outage) as outage:
        replace(world.notifier, channels=[channel])(delivery(world.ready()))
    outage.value.probe()


def test_a_worker_that_was_overtaken_while_it_stalled_does_not_make_a_second_mail(
    world: World, ses: Any, mailbox: Mailbox
) -> None:
    event = world.ready()

    class Overtaken(Email):
        def send(self, notice: Notice) -> str:
            # The lease runs out here; another worker finds SENDING and cannot know that we live.
            _now(world, event)
            assert world.notifier(delivery(event)) == Finished()
            return super().send(notice)

    channel = Overtaken(ses, sender=SENDER, to="{owner_id}", resend_in_doubt=False)
    assert isinstance(replace(world.notifier, channels=[channel])(delivery(event)), Later)
    assert len(mailbox.mails) == 1
    assert world.rows(event)["email"] == State.SENT


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(({"content-encoding": "gzip"}, [gzip.compress(b" " * 50_000_000)]), id="swells"),
        pytest.param(({}, itertools.repeat(b"a" * 65_536)), id="never-ends"),
        pytest.param(({"content-length": "5"}, [b"cut"]), id="breaks-off"),
    ],
)
def test_of_what_a_receiver_says_behind_its_status_little_is_read(
    world: World, receiver: Receiver, said: tuple[dict[str, str], Iterable[bytes]]
) -> None:
    event = world.ready()
    receiver.statuses, receiver.headers, receiver.content = [200], said[0], iter(said[1])
    tracemalloc.start()
    try:
        assert world.notifier(delivery(event)) == Finished()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert receiver.ids == {event.id: 1}
    assert world.rows(event)["webhook"] == State.SENT
    assert peak < 20_000_000


def test_a_defect_costs_attempts_and_comes_to_an_end(world: World) -> None:
    class Broken(SignedWebhook):
        def __init__(self) -> None:
            """Nothing that sending needs."""

    event = world.ready()
    broken = replace(world.notifier, channels=[Broken()])
    for _ in range(2):
        assert isinstance(broken(delivery(event)), Later)
        _now(world, event)
    assert broken(delivery(event)) == Finished()
    assert world.inbox_state(event) == "DEAD"


def test_an_end_that_is_known_is_not_overwritten(world: World) -> None:
    journal, event = Journal(world.db), world.failed()
    notice = Notice(event.id, event.asset_id, "o", event.occurred_at)
    journal.begin(notice, "email")
    journal.note(notice, "email", State.SENT, "id")
    journal.note(notice, "email", State.IN_DOUBT, "late")
    assert journal.begin(notice, "email") is State.SENT
    assert world.rows(event) == {"email": State.SENT}


def _die_while_sending(world: World, event: Event) -> None:
    """As after SIGKILL between the journal's first row and SES's answer."""
    world.notifier.inbox.claim(event.id, owner="dead")
    world.notifier.journal.begin(Notice(event.id, event.asset_id, "o", event.occurred_at), "email")
    _now(world, event)


def _now(world: World, event: Event) -> None:
    """The lease has run out and the back-off is over."""
    past = {"$subtract": ["$$NOW", 1]}
    world.db.consumer_inbox.update_one({"event_id": event.id}, [{"$set": {"lease_until": past, "not_before": past}}])


def test_the_record_s_key_must_be_its_asset(world: World, mailbox: Mailbox) -> None:
    record = to_record(world.ready(), source=STREAM_SOURCE)
    assert world.notifier(Delivery("t", 0, 0, b"other", record.value, record.headers, owner="o")) == Finished()
    assert mailbox.mails == []

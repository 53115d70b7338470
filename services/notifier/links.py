"""Links to a picture in the bucket that need no account."""

from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError

from darkroom.contracts.events import AssetReady
from notifier.channels import Unavailable
from notifier.notice import Link


class Links:
    """Signs links with the session's credentials; nothing is sent."""

    def __init__(self, session: Any, client: Any, *, bucket: str, seconds: int) -> None:
        self._session = session
        self._client = client
        self._bucket = bucket
        self._seconds = seconds

    def sign(self, ready: AssetReady) -> Link:
        """A link to the largest rendition. It works no longer than the credentials that signed it, and says so.

        Raises:
            Unavailable: there are no credentials, or they cannot be renewed.

        """
        try:
            return self._sign(ready)
        except (BotoCoreError, RuntimeError) as error:  # botocore raises both when credentials cannot be renewed
            raise Unavailable("signing links", self.check) from error

    def check(self) -> None:
        """See that there are credentials to sign with.

        Raises:
            RuntimeError: there are none, or they have expired.

        """
        credentials = self._session.get_credentials()
        if credentials is None:
            raise RuntimeError(
                "There are no AWS credentials to sign links with. Give the service a role, or set AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY."
            )
        credentials.get_frozen_credentials()

    def _sign(self, ready: AssetReady) -> Link:
        now = datetime.now(UTC).replace(microsecond=0)
        self.check()  # which renews credentials that are about to run out
        # botocore has no public name for it; long-lived keys have none.
        ends: datetime | None = getattr(self._session.get_credentials(), "_expiry_time", None)
        seconds = self._seconds if ends is None else max(1, min(self._seconds, int((ends - now).total_seconds())))
        url = self._client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "ResponseContentDisposition": "inline", **_shown(ready)},
            ExpiresIn=seconds,
        )
        return Link(url, now + timedelta(seconds=seconds))


def _shown(ready: AssetReady) -> dict[str, str]:
    largest = max(ready.renditions, key=lambda rendition: rendition.width * rendition.height, default=None)
    if largest is None:
        return {"Key": ready.object_key}
    return {"Key": largest.object_key, "ResponseContentType": largest.content_type}

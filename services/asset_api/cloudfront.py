"""Download URLs of a CloudFront distribution in front of the bucket, signed with a key pair of its key group.

The distribution must forward ``response-content-type`` and ``response-content-disposition`` to S3 and sign its requests
to S3 (origin access control): S3 takes these from signed requests alone. A URL's query is part of what is signed.
"""

from datetime import datetime
from urllib.parse import quote, urlencode

from botocore.signers import CloudFrontSigner
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from darkroom.runtime.start import StartRefused


class CloudFront:
    """Signs URLs. Nothing is sent, and no credentials of AWS are needed."""

    def __init__(self, *, base_url: str, key_id: str, private_key: str) -> None:
        """``private_key`` is RSA in PEM.

        Raises:
            StartRefused: it is not.

        """
        try:
            key = serialization.load_pem_private_key(private_key.encode(), password=None)
        except (ValueError, TypeError) as error:
            raise StartRefused("DARKROOM_CLOUDFRONT_PRIVATE_KEY: not a private key in PEM without password") from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise StartRefused("DARKROOM_CLOUDFRONT_PRIVATE_KEY: not an RSA key")
        self.origin = base_url.rstrip("/")
        # SHA-1 is what CloudFront checks by default.
        sha1 = hashes.SHA1()  # noqa: S303 -- see above
        self._signer = CloudFrontSigner(key_id, lambda message: key.sign(message, padding.PKCS1v15(), sha1))

    def sign(self, object_key: str, *, parameters: dict[str, str], expires_at: datetime) -> str:
        """The URL of an object, with S3's ``response-…`` parameters, until ``expires_at``."""
        query = urlencode(parameters, quote_via=quote, safe="")
        url: str = self._signer.generate_presigned_url(
            f"{self.origin}/{quote(object_key)}?{query}", date_less_than=expires_at
        )
        return url

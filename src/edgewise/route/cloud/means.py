"""What this device needs to ask a destination: the key, whom to trust, the way there.

It is read before a consent is used up: what is missing here must cost the user nothing. Nothing is
looked up or connected to for it. The keyring may ask the user to unlock it.
"""

from __future__ import annotations

import ssl
import time
from dataclasses import dataclass, field

from edgewise.errors import EdgewiseError
from edgewise.route.cloud import faults
from edgewise.route.cloud.answers import CloudFault
from edgewise.route.cloud.faults import FaultError
from edgewise.route.cloud.proxies import Proxy, proxy_for
from edgewise.route.cloud.secrets import Secret, Secrets
from edgewise.route.cloud.tls import trusting
from edgewise.route.cloud.waiting import Span
from edgewise.route.destinations import Destination

__all__ = ["Means", "read_means"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What one destination is asked with.

    Attributes:
        destination: Whom.
        secret: Its key.
        trust: Whom TLS trusts; ``None`` only for this machine over http.
        proxy: The proxy to ask for a tunnel.
        took_s: How long it took to read, seconds.
    """

    destination: Destination
    secret: Secret | None
    trust: ssl.SSLContext | None = field(repr=False)
    proxy: Proxy | None
    took_s: float


def read_means(destination: Destination, secrets: Secrets, span: Span) -> Means:
    """Return what a destination is asked with.

    Raises:
        FaultError: there is no key, the proxy cannot be used, the certificates cannot be read; or
            cancelled, or past the deadline.
    """
    proxy = proxy_for(destination)
    trust = trusting(destination.ca_file) if destination.scheme == "https" else None
    secret = _secret(destination, secrets, span)
    took_s = time.monotonic() - span.began
    return Means(destination=destination, secret=secret, trust=trust, proxy=proxy, took_s=took_s)


def _secret(destination: Destination, secrets: Secrets, span: Span) -> Secret | None:
    name = destination.secret
    if name is None:
        return None
    try:
        return span.run(
            lambda: secrets.get(name),
            most_s=span.left_s,
            doing="reading the key from the keyring",
        )
    except EdgewiseError as error:
        raise FaultError(faults.here(CloudFault.PERMISSION, error)) from None

"""TLS of the cloud tier: always verified. Nothing here can switch that off."""

from __future__ import annotations

import ssl

from edgewise.errors import EdgewiseError, InputError
from edgewise.models.sources.transport import tls_context
from edgewise.route.cloud import faults
from edgewise.route.cloud.answers import CloudFault
from edgewise.route.cloud.faults import FaultError

__all__ = ["trusting"]


def trusting(ca_file: str | None) -> ssl.SSLContext:
    """Return the context for a destination.

    With a ``ca_file`` its certificates are the only ones that are trusted; without, those that the
    environment names, or the system's and certifi's. The key log of ``SSLKEYLOGFILE`` is not
    honoured: it would let a reader of that file see what was sent.

    Raises:
        FaultError: the certificates cannot be read.
    """
    try:
        if ca_file is None:
            return tls_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_verify_locations(cafile=ca_file)
    except EdgewiseError as error:
        raise FaultError(faults.here(CloudFault.TLS, error)) from None
    except (OSError, ssl.SSLError) as error:
        unreadable = InputError(
            "cloud-ca-unreadable",
            f"{ca_file} is not a readable file of certificates ({type(error).__name__})",
            context={"path": ca_file},
            hint="correct ca_file in the policy; it is a PEM file",
        )
        raise FaultError(faults.here(CloudFault.TLS, unreadable)) from None
    return context

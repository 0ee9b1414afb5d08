"""The cloud tier: one client that asks a destination, for one permit at a time.

Importing it loads neither the openai SDK nor anything of the network.
"""

from edgewise.route.cloud.answers import (
    CloudAnswer,
    CloudFailure,
    CloudFault,
    CloudTimings,
    CloudUsage,
)
from edgewise.route.cloud.cancel import CancelToken
from edgewise.route.cloud.client import DEADLINE_S, CloudClient, require_sound
from edgewise.route.cloud.means import Means
from edgewise.route.cloud.payload import CloudPayload
from edgewise.route.cloud.secrets import Secret, Secrets
from edgewise.route.cloud.spend import SpendLedger, Spent

__all__ = [
    "DEADLINE_S",
    "CancelToken",
    "CloudAnswer",
    "CloudClient",
    "CloudFailure",
    "CloudFault",
    "CloudPayload",
    "CloudTimings",
    "CloudUsage",
    "Means",
    "Secret",
    "Secrets",
    "SpendLedger",
    "Spent",
    "require_sound",
]

"""The local HTTP API: OpenAI's protocol over the active deployment, on loopback by default.

Invariants: a parameter that would have no effect is refused by name; an answer that was cut,
cancelled or broken never looks like a whole one; one client cannot take what others need (queue,
memory, connections, time); nothing that somebody wrote is logged.

The two libraries that it needs (Starlette, uvicorn) come with the extra ``serve`` and are imported
here only.
"""

from edgewise.serve.guard import Guard, valid_origin
from edgewise.serve.limits import Limits

__all__ = ["Guard", "Limits", "valid_origin"]

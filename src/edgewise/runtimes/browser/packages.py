"""The npm packages of the browser runtimes, each pinned by the registry's integrity string.

This is their lock: a package that is fetched and has another digest is refused.
"""

from __future__ import annotations

from edgewise.runtimes.environment import NpmPackage

__all__ = ["PLAYWRIGHT", "WEB_LLM", "WLLAMA"]

PLAYWRIGHT = "playwright==1.65.2"

WLLAMA = NpmPackage(
    name="@wllama/wllama",
    version="3.13.0",
    integrity=(
        "sha512-ZvoRdQAn+E+18EvQ9qS036gudiI9rbZRBJgG/qNICPPwrA0Y6SMMdbziz/j7K/0WxcbJlhaRraVIYsnEy732NA=="
    ),
)

# Its only dependency (loglevel) is bundled into lib/index.js.
WEB_LLM = NpmPackage(
    name="@mlc-ai/web-llm",
    version="0.2.86",
    integrity=(
        "sha512-plciXBCYtY7iTKHzEcsqOfSO+s5u8NqMYFPnHmRbsN8CEdKcolgXIoGLPbzO6FtJHV43m7YP00x6qQ6Kb8CJJw=="
    ),
)

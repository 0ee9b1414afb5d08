"""Fetches one file of a hub repository through huggingface_hub.

Invariants: a branch or tag is resolved to a commit first, and the commit is what is fetched. The
file's size, and its digest where the hub states one, are verified on disk. The library's
telemetry is off. The endpoint is ``HF_ENDPOINT``; tokens are the library's own business.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edgewise.errors import EdgewiseError, InputError, RemoteError, UnsupportedError
from edgewise.models.sources import partial
from edgewise.models.sources.progress import Phase, Reporter
from edgewise.models.sources.reference import HubReference

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["FetchedHubFile", "fetch_hub_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedHubFile:
    """A verified file and the commit that it belongs to.

    Attributes:
        path: The file, in the library's cache below the staging folder.
        commit: The commit that the revision stood for.
        sha256: Digest of the bytes on disk.
        size_bytes: Their number.
        licence: What the repository's card says, if it says anything.
        stated: Whether the hub stated the digest.
    """

    path: Path
    commit: str
    sha256: str
    size_bytes: int
    licence: str | None
    stated: bool


def fetch_hub_file(
    reference: HubReference,
    folder: Path,
    *,
    reporter: Reporter,
    expected_sha256: str | None = None,
    expected_size_bytes: int | None = None,
    margin_bytes: int = partial.DISK_MARGIN_BYTES,
) -> FetchedHubFile:
    """Return the verified file that ``reference`` names, cached below ``folder``.

    Raises:
        FetchCancelledError: the caller asked to stop.
        InputError: no such repository, revision or file.
        IntegrityError: other digest or size than pinned or stated.
        RemoteError: unreachable, offline, or access refused.
        ResourceError: no space or no permission.
        UnsupportedError: huggingface_hub is not installed.
    """
    library = _library()
    repo_id = f"{reference.owner}/{reference.repo}"
    endpoint = os.environ.get("HF_ENDPOINT") or None
    reporter.check()
    reporter.event(Phase.RESOLVING, f"asking the hub for {reference.canonical}")
    with _translated(reference, folder):
        api = library.HfApi(endpoint=endpoint, library_name="edgewise")
        info = api.model_info(repo_id, revision=reference.revision, files_metadata=True, timeout=30)
    sibling = next((one for one in info.siblings or () if one.rfilename == reference.file), None)
    if sibling is None or not info.sha:
        raise _not_found(reference, "file", f"{repo_id} has no file {reference.file!r}")
    stated = sibling.lfs.sha256 if sibling.lfs else None
    if stated is not None:
        partial.check_digest(stated, expected_sha256, what=reference.file)
    if sibling.size is not None:
        partial.check_size(sibling.size, expected_size_bytes, what=reference.file)
        partial.check_space(folder, sibling.size, margin_bytes)
    with _translated(reference, folder):
        found = library.hf_hub_download(
            repo_id,
            reference.file,
            revision=info.sha,
            cache_dir=folder / "hub",
            endpoint=endpoint,
            library_name="edgewise",
            tqdm_class=_bar(reporter),
        )
    path = Path(found).resolve()
    size = path.stat().st_size
    partial.check_size(size, expected_size_bytes or sibling.size, what=reference.file)
    actual = partial.verify_file(path, reporter, expected_sha256=expected_sha256 or stated)
    card = info.card_data
    licence = card.get("license") if card is not None else None
    return FetchedHubFile(
        path=path,
        commit=info.sha,
        sha256=actual,
        size_bytes=size,
        licence=licence if isinstance(licence, str) else None,
        stated=stated is not None,
    )


def _library() -> ModuleType:
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # read when the library is first imported
    try:
        import huggingface_hub  # noqa: PLC0415
        from huggingface_hub import constants  # noqa: PLC0415
    except ImportError as error:
        raise UnsupportedError(
            "hub-library-missing",
            "hf: references need the huggingface_hub package",
            hint="pip install 'edgewise[hf]'",
        ) from error
    constants.HF_HUB_DISABLE_TELEMETRY = True  # when something else imported it before
    return huggingface_hub


def _bar(reporter: Reporter) -> type[Any]:
    """Return a progress bar class that draws nothing and reports to ``reporter``."""
    from huggingface_hub.utils.tqdm import tqdm  # noqa: PLC0415

    class Bar(tqdm):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.done_bytes = int(kwargs.get("initial") or 0)
            self.total_bytes = kwargs.get("total")
            super().__init__(*args, **{**kwargs, "disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            self.done_bytes += int(n or 0)
            reporter.advance(Phase.DOWNLOADING, self.done_bytes, self.total_bytes)

    return Bar


@contextmanager
def _translated(reference: HubReference, folder: Path) -> Iterator[None]:
    """Translate what huggingface_hub raises.

    Raises:
        InputError: no such repository, revision or file, or a name the library refuses.
        RemoteError: unreachable, offline, cut off, or access refused.
        ResourceError: no space or no permission.
    """
    try:
        yield
    except EdgewiseError:
        raise
    except Exception as error:
        typed = _typed(error, reference)
        if typed is not None:
            raise typed from error
        with partial.storage_errors(folder):
            raise


def _typed(error: Exception, reference: HubReference) -> EdgewiseError | None:
    """Return the typed error for one of the library's, ``None`` for one of the disk's or a bug."""
    from huggingface_hub import errors  # noqa: PLC0415

    # The library's own HTTP client library differs between its versions; its base error does not.
    http_error = errors.HfHubHTTPError.__mro__[1]
    repo = f"{reference.owner}/{reference.repo}"
    match error:
        case errors.GatedRepoError():
            hint = "accept its terms on the hub, then log in (hf auth login) or set HF_TOKEN"
            return _remote("hub-gated", f"access to {repo} must be granted first", error, hint=hint)
        case (
            errors.RevisionNotFoundError()
            | errors.RepositoryNotFoundError()
            | errors.RemoteEntryNotFoundError()
        ):
            return _missing(error, reference)
        case errors.OfflineModeIsEnabled():
            hint = "unset HF_HUB_OFFLINE to fetch"
            return _remote("hub-offline", "HF_HUB_OFFLINE is set", error, hint=hint)
        case errors.HfHubHTTPError():
            return _status(error.response.status_code, error)
        case errors.LocalEntryNotFoundError():
            return _unreachable(error)
        case OSError() if error.errno is not None:
            return None
        case _ if isinstance(error, http_error | OSError):
            return _unreachable(error)
        case ValueError():
            return InputError("hub-refused", str(error), context=_context(reference))
        case _:
            return None


def _missing(error: Exception, reference: HubReference) -> InputError:
    from huggingface_hub import errors  # noqa: PLC0415

    repo = f"{reference.owner}/{reference.repo}"
    if isinstance(error, errors.RevisionNotFoundError):
        return _not_found(reference, "revision", f"no revision {reference.revision!r} of {repo}")
    if isinstance(error, errors.RepositoryNotFoundError):
        return _not_found(reference, "repository", f"no repository {repo}, or it is private")
    return _not_found(reference, "file", f"no file {reference.file!r} in {repo}")


def _status(status: int, error: Exception) -> RemoteError:
    return _remote(
        "hub-denied" if status in {401, 403} else "hub-failed",
        f"the hub answered {status}",
        error,
        retryable=status in {408, 429} or status >= 500,
        status=status,
    )


def _unreachable(error: BaseException) -> RemoteError:
    return _remote(
        "hub-unreachable",
        f"the hub cannot be reached or broke off: {error}",
        error,
        hint="check the network, the proxy and HF_ENDPOINT, then run the same command again",
        retryable=True,
    )


def _remote(
    code: str,
    message: str,
    error: BaseException,
    *,
    hint: str | None = None,
    retryable: bool = False,
    status: int | None = None,
) -> RemoteError:
    context = {"reason": str(error), "status": status}
    return RemoteError(code, message, context=context, hint=hint, retryable=retryable)


def _not_found(reference: HubReference, what: str, message: str) -> InputError:
    return InputError(
        "hub-not-found",
        message,
        context={**_context(reference), "missing": what},
        hint="check the spelling; a private repository needs a token (hf auth login)",
    )


def _context(reference: HubReference) -> dict[str, Any]:
    return {"reference": reference.canonical}

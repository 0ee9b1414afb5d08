"""The ``litert-lm`` engine: messages in, text out, by LiteRT-LM itself.

It renders the bundle's template, tokenises and samples on its own; logits stay inside. What can
be checked from outside is: every prompt is rendered here too, with the checkpoint's template, and
the engine's rendering and token count must be the same, or the request is refused.

A cancel takes effect between two decode steps. The prefill of a prompt is one step to this
engine, however long it is: a cancel waits for its end.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from edgewise.core.outcome import FinishReason
from edgewise.core.recipe import LoadMode, RunConfig
from edgewise.core.request import Message, Sampling
from edgewise.errors import AdapterError, InputError, UnsupportedError
from edgewise.runtimes.hf_tokenizer import HfTokenizer
from edgewise.runtimes.litert import native
from edgewise.runtimes.litert.artifact import find_bundle, find_model
from edgewise.runtimes.litert.chat import read_chat_source
from edgewise.runtimes.litert.engine import check_context, check_run_config
from edgewise.runtimes.litert.flatbuffer import Layout, read_layout
from edgewise.runtimes.litert.report import memory_report, partition_report
from edgewise.runtimes.protocol import CancelledError
from edgewise.runtimes.reports import MemoryReport, PartitionReport, TextResult

__all__ = ["LiteRtLmEngine"]

# The engine would put compiled weights beside the artifact, which is not ours to write to.
_NO_CACHE = ":nocache"
_SEED_BITS = 31


class LiteRtLmEngine:
    """One bundle. One conversation at a time. Not thread-safe, except ``cancel``."""

    runtime = "litert-lm"
    # Observed with litert-lm-api 0.18.1; a test fails when a later one does better.
    structure_refusal = (
        "LiteRT-LM constrains answers itself, and reads the tokens of a byte-level vocabulary by "
        "their letters, so that an answer with a space, a line end or a letter beyond ASCII fails"
    )

    def __init__(self, artifact: Path, run_config: RunConfig) -> None:
        """Load the bundle.

        Args:
            artifact: The artifact's folder: bundle, tokenizer, chat template.
            run_config: How to run it.

        Raises:
            UnsupportedError: the runtime is not installed, or the run configuration asks for
                what it cannot do.
            InputError: the artifact has no chat template.
            IntegrityError: the artifact is damaged.
            AdapterError: LiteRT-LM refuses the bundle.
        """
        check_run_config(self.runtime, run_config)
        bundle = find_bundle(artifact)
        self._stored = find_model(bundle)
        layout = read_layout(self._stored)
        check_context(run_config, layout)
        _check_loading(run_config, layout)
        self._config = run_config
        self._chat = read_chat_source(artifact if artifact.is_dir() else artifact.parent)
        self._tokenizer = HfTokenizer(artifact if artifact.is_dir() else artifact.parent)
        (self._library,) = native.load(native.TEXT_PACKAGE)
        self._library.set_min_log_severity(self._library.LogSeverity.ERROR)
        self._cancelled = threading.Event()
        self._lock = threading.Lock()
        self._conversation: Any = None
        self._engine = self._open(bundle)

    def _open(self, bundle: Path) -> Any:
        with _translated("model-load-failed", f"LiteRT-LM cannot load {bundle.name}"):
            return self._library.Engine(
                str(bundle),
                backend=self._library.Backend.CPU(thread_count=self._config.threads),
                max_num_tokens=self._config.context_length,
                cache_dir=_NO_CACHE,
                enable_benchmark=True,  # the only way to learn how many tokens there were
            )

    @property
    def context_length(self) -> int:
        """Return how many tokens prompt and answer may take together."""
        return self._config.context_length

    @property
    def begin_token(self) -> int | None:
        """Return the token the engine puts in front of every prompt, if any."""
        token: int | None = self._engine.bos_token_id
        return token

    @property
    def end_tokens(self) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences that end an answer."""
        return tuple(tuple(ids) for ids in self._engine.eos_token_ids)

    def generate(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        sampling: Sampling,
        on_text: Callable[[str], None],
    ) -> TextResult:
        """Answer, giving text to ``on_text`` as it comes.

        See :meth:`edgewise.runtimes.protocol.TextEngine.generate`.

        Raises:
            InputError: the messages do not fit into the context, spell a control token, or the
                template refuses them.
            UnsupportedError: a sampling setting or the template cannot be honoured.
            CancelledError: ``cancel`` was called before the first text.
            AdapterError: the native call failed.
        """
        if self._cancelled.is_set():
            raise CancelledError
        plain = [{"role": message.role, "content": message.content} for message in messages]
        prompt = self._prompt(plain)
        started = time.perf_counter()
        room = min(max_tokens, self.context_length - len(prompt))
        with self._conversing(plain[:-1], sampling, room) as conversation:
            self._require_same_text(conversation, plain)
            texts, first_at = self._stream(conversation, plain[-1], on_text)
            ended = time.perf_counter()
            with _translated("decode-failed", "LiteRT-LM gives no counts"):
                counts = conversation.get_benchmark_info()
        cancelled = self._cancelled.is_set()
        if cancelled and not texts:
            raise CancelledError
        prompt_tokens = int(counts.last_prefill_token_count)
        if prompt_tokens != len(prompt):
            raise AdapterError(
                "prompt-unfaithful",
                f"LiteRT-LM took {prompt_tokens} prompt tokens; the model's own tokenizer makes "
                f"{len(prompt)}",
                hint="the bundle's begin token or tokenizer is wrong; build it again",
            )
        made = int(counts.last_decode_token_count)
        first_at = first_at if first_at is not None else ended
        finish = _finish(cancelled=cancelled, full=made >= room)
        return TextResult(
            text="".join(texts),
            finish=finish,
            prompt_tokens=prompt_tokens,
            # The engine counts the end token, which is no part of the answer.
            completion_tokens=made - (finish is FinishReason.STOP),
            ttft_ms=(first_at - started) * 1e3,
            decode_ms=(ended - first_at) * 1e3,
        )

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt's token ids as the model's own tokenizer and template make them.

        Raises:
            InputError: the template refuses the messages, or one spells a control token.
            IntegrityError: the template is invalid or never ends.
        """
        plain = [{"role": message.role, "content": message.content} for message in messages]
        return self._prompt(plain)

    def _prompt(self, messages: list[dict[str, str]]) -> list[int]:
        for message in messages:
            self._refuse_control_tokens(message["content"])

        def encode(text: str, add_special: bool) -> list[int]:
            return self._tokenizer.tokenize(text, add_special=add_special, parse_special=True)

        ids = self._chat.prompt_ids(messages, encode)
        if len(ids) >= self.context_length:
            raise InputError(
                "context-full",
                f"the prompt has {len(ids)} tokens; the context holds {self.context_length}, "
                "and an answer needs at least one",
                context={"needed": len(ids) + 1, "context": self.context_length},
                hint="shorten the prompt, or set the model up with a larger context: "
                "edgewise up --context N",
            )
        return ids

    def _refuse_control_tokens(self, content: str) -> None:
        """The engine tokenises prompt and content in one, so it cannot keep the two apart."""
        as_text, as_written = (
            self._tokenizer.tokenize(content, add_special=False, parse_special=parse)
            for parse in (False, True)
        )
        if as_text != as_written:
            raise InputError(
                "content-spells-control-token",
                "a message spells a control token, and LiteRT-LM would take it for one",
                hint="remove it from the text, or use the litert runtime",
            )

    def _require_same_text(self, conversation: Any, messages: list[dict[str, str]]) -> None:
        wanted = self._chat.render(messages)
        with _translated("decode-failed", "LiteRT-LM cannot render the prompt"):
            rendered = conversation.render_message_to_string(messages[-1])
        begin = self._chat.bos_token
        if self.begin_token is not None and begin and not rendered.startswith(begin):
            rendered = begin + rendered
        if rendered not in {wanted, begin + wanted}:
            raise UnsupportedError(
                "template-unsupported",
                "LiteRT-LM's template engine does not render this model's chat template as it is",
                context={"rendered_chars": len(rendered), "wanted_chars": len(wanted)},
                hint="use the litert runtime, which takes tokens",
            )

    def _stream(
        self, conversation: Any, message: dict[str, str], on_text: Callable[[str], None]
    ) -> tuple[list[str], float | None]:
        texts: list[str] = []
        first_at: float | None = None
        with _translated("decode-failed", "LiteRT-LM failed while answering"):
            for part in conversation.send_message_async(message):
                text = str(part)
                if text and not self._cancelled.is_set():
                    first_at = first_at or time.perf_counter()
                    texts.append(text)
                    on_text(text)
        return texts, first_at

    @contextlib.contextmanager
    def _conversing(
        self, history: list[dict[str, str]], sampling: Sampling, max_tokens: int
    ) -> Iterator[Any]:
        with _translated("conversation-failed", "LiteRT-LM cannot begin a conversation"):
            conversation = self._engine.create_conversation(
                messages=history,
                sampler_config=self._sampler(sampling),
                max_output_tokens=max_tokens,
                automatic_tool_calling=False,
            )
        with self._lock:
            self._conversation = conversation
            if self._cancelled.is_set():
                conversation.cancel_process()
        try:
            yield conversation
        finally:
            with self._lock:
                self._conversation = None
            conversation.close()

    def _sampler(self, sampling: Sampling) -> Any:
        if sampling.min_p:
            raise UnsupportedError(
                "sampling-unsupported",
                "LiteRT-LM has no min_p",
                hint="leave min_p out, or use the litert runtime",
            )
        config = self._library.SamplerConfig
        if sampling.temperature == 0:
            return config(top_k=1, top_p=1.0, temperature=0.0, seed=0)
        seed = secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed
        if seed >> _SEED_BITS:
            raise UnsupportedError(
                "sampling-unsupported",
                f"LiteRT-LM takes seeds of {_SEED_BITS} bits",
                hint=f"use a seed below {1 << _SEED_BITS}",
            )
        # The engine has no "all"; more than there are tokens is the same.
        top_k = sampling.top_k or self._tokenizer.vocab_size
        return config(
            top_k=top_k, top_p=sampling.top_p, temperature=sampling.temperature, seed=seed
        )

    def cancel(self) -> None:
        """Abort the running call. Callable from any thread."""
        self._cancelled.set()
        with self._lock:
            if self._conversation is not None:
                self._conversation.cancel_process()

    def clear_cancel(self) -> None:
        """Arm the engine for the next call."""
        self._cancelled.clear()

    def memory(self) -> MemoryReport:
        """Return what the process holds; the engine tells nothing of its parts."""
        return memory_report(self._stored.size, None)

    def partition(self) -> PartitionReport:
        """Return which operators of the bundle's model run where.

        The bundle's model is loaded in LiteRT's interpreter: the engine tells nothing itself.

        Raises:
            UnsupportedError: ai-edge-litert is not installed.
            AdapterError: the interpreter refuses the model.
            ResourceError: there is no room for a copy of the model.
        """
        return partition_report(self._stored, threads=self._config.threads)

    def close(self) -> None:
        """Free the model."""
        self._engine.close()


def _check_loading(run_config: RunConfig, layout: Layout) -> None:
    """Refuse what the engine decides by itself."""
    if run_config.load_mode is not LoadMode.MMAP:
        raise UnsupportedError(
            "load-mode-unsupported",
            f"LiteRT-LM maps its bundle; {run_config.load_mode} was asked for",
            hint="use mmap",
        )
    if run_config.batch_tokens < layout.prefill_tokens:
        raise UnsupportedError(
            "batch-unsupported",
            f"the bundle's prefill takes {layout.prefill_tokens} tokens a step; at most "
            f"{run_config.batch_tokens} were asked for",
            hint=f"allow {layout.prefill_tokens}",
        )


def _finish(*, cancelled: bool, full: bool) -> FinishReason:
    # An end token in the very last place cannot be told from an answer that was cut there.
    if cancelled:
        return FinishReason.CANCELLED
    return FinishReason.LENGTH if full else FinishReason.STOP


@contextlib.contextmanager
def _translated(code: str, what: str) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, OSError) as error:
        lines = str(error).strip().splitlines()
        raise AdapterError(
            code, f"{what}: {lines[0] if lines else type(error).__name__}"
        ) from error

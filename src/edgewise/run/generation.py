"""Answers on one engine: structure, prompt, cache, decoding, and what is said about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from edgewise.core.outcome import FinishReason, TokenLogprob
from edgewise.core.request import DEFAULT_MAX_TOKENS, Message, Sampling
from edgewise.device.process import peak_resident_bytes
from edgewise.errors import AdapterError, InputError
from edgewise.run.answer import Answer
from edgewise.run.deadline import Deadline
from edgewise.run.decoding import Decoder
from edgewise.run.evaluation import Cache
from edgewise.run.guesser import Guesser
from edgewise.run.messages import Chunk, Generated, GenerateParams, Notice, Prefilled
from edgewise.run.prompting import Prompt, Prompter
from edgewise.run.scoring import score_prompt
from edgewise.run.signals import signals_of
from edgewise.run.speculation import PassCosts
from edgewise.runtimes.protocol import CancelledError, VerifyingEngine

if TYPE_CHECKING:
    from edgewise.core.bundle import TextSettings
    from edgewise.core.structure import Structure
    from edgewise.run.draft_model import DraftModel
    from edgewise.run.prefixes import PrefixCache
    from edgewise.run.structure import Constrainer, Matcher
    from edgewise.runtimes.protocol import Engine

__all__ = ["Generator"]


class Generator:
    """Answers requests on one engine."""

    def __init__(
        self,
        engine: Engine,
        text: TextSettings,
        prefixes: PrefixCache | None = None,
        draft: DraftModel | None = None,
    ) -> None:
        """Take an engine with an empty cache, and a draft model with one, where there is one."""
        self._engine = engine
        self._draft = draft
        self._end = frozenset(text.end_token_ids)
        self._prompter = Prompter(engine, text, self._summarise)
        self._cache = Cache(engine, prefixes)
        self._constrainer: Constrainer | None = None
        self._costs = PassCosts()

    def generate(self, params: GenerateParams, emit: Callable[[Notice], None]) -> Generated:
        """Return how the generation ended, after its text went out through ``emit``.

        Raises:
            InputError: prompt and answer do not fit into the context, or the structure is wrong.
            UnsupportedError: the structure or a policy cannot be honoured here.
            AdapterError: the native runtime failed.
        """
        matcher = self._matcher(params)
        parser = self._prompter.call_parser(params)
        facts = _Facts()
        with Deadline(params.deadline_s, self._cancel) as deadline:
            answer = Answer(params, 0, emit, parser)
            try:
                prompt = self._prompter.prompt(params)
                facts.prompt_tokens = len(prompt.tokens)
                answer.events += prompt.events
                answer.limit = self._reserve(len(prompt.tokens), params)
                logits = self._prefill(prompt, answer, facts)
                if answer.limit:
                    self._decoder(answer, prompt.tokens, matcher).run(logits)
                else:
                    answer.finish = FinishReason.LENGTH
            except CancelledError:
                answer.finish = deadline.reason
            finally:
                self._cache.settle()
        answer.close()
        if params.structure is not None and answer.finish is FinishReason.STOP:
            _require_structure(params.structure, answer.text)
        return facts.generated(answer, self._engine.context_length)

    def prompt_tokens(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt of plain messages; errors as ``generate``'s."""
        return self._prompter.conversation(messages)

    def persist(self) -> int:
        """Keep what the cache holds on disk, for the next process that answers with this.

        Returns how many tokens lie there now.
        """
        return self._cache.persist()

    def _cancel(self) -> None:
        self._engine.cancel()
        if self._draft is not None:
            self._draft.engine.cancel()

    def _matcher(self, params: GenerateParams) -> Matcher | None:
        forced = self._prompter.forced_structure(params)
        structure = params.structure or forced
        if structure is None:
            return None
        from edgewise.run.structure import Constrainer  # noqa: PLC0415 - few requests need it

        if self._constrainer is None:
            self._constrainer = Constrainer(self._engine, self._end)
        return self._constrainer.matcher(structure, own=structure is forced)

    def _decoder(self, answer: Answer, prompt: list[int], matcher: Matcher | None) -> Decoder:
        return Decoder(
            self._engine,
            self._end,
            answer,
            self._cache.tokens,
            matcher=matcher,
            guesser=self._guesser(prompt, answer.params),
            costs=self._costs,
            spelled=answer.spelled,
        )

    def _guesser(self, prompt: list[int], params: GenerateParams) -> Guesser | None:
        if not self._may_guess(params):
            return None
        return Guesser(prompt, self._costs, self._draft, self._end)

    def _may_guess(self, params: GenerateParams) -> bool:
        """Return whether guesses may be verified for a request.

        A draw can fall otherwise by the rounding of a pass over several tokens, and a seed is to
        give the same answer again; so guesses go with greedy choice.
        """
        if not params.speculate or params.sampling.temperature > 0:
            return False
        return isinstance(self._engine, VerifyingEngine) and self._engine.verify_tokens > 1

    def _prefill(self, prompt: Prompt, answer: Answer, facts: _Facts) -> Any:
        """Evaluate a prompt; return the logits after it."""
        started, total = time.perf_counter(), len(prompt.tokens)

        def progress(done: int) -> None:
            if done < total:
                answer.emit(Prefilled(done=done, total=total))

        try:
            if answer.params.echo:
                return self._score(prompt.tokens, answer, facts)
            facts.reused, events = self._cache.reuse(prompt)
            answer.events += events
            return self._cache.evaluate(prompt, progress)
        finally:
            facts.prefill_ms = (time.perf_counter() - started) * 1e3

    def _score(self, tokens: list[int], answer: Answer, facts: _Facts) -> Any:
        self._cache.clear()
        top = answer.params.logprobs or 0
        logits, facts.prompt_logprobs = score_prompt(self._engine, tokens, top)
        self._cache.tokens += tokens
        return logits

    def _summarise(self, turns: Sequence[Message], most: int) -> str:
        """Summarise turns with the model itself, greedily, within ``most`` tokens."""
        from edgewise.run.context import summary_request  # noqa: PLC0415 - few requests need it

        tokens = self._prompter.conversation(summary_request(turns, most))
        room = self._engine.context_length - most
        if len(tokens) > room:
            raise InputError(
                "prompt-too-long",
                f"the turns to be summarised have {len(tokens)} tokens, and {room} fit",
                context={"prompt_tokens": len(tokens), "context": self._engine.context_length},
                hint="use the context policy truncate-oldest-turns, or a larger context",
            )
        pieces: list[str] = []

        def collect(notice: Notice) -> None:
            if isinstance(notice, Chunk):
                pieces.append(notice.text)

        params = GenerateParams(max_tokens=most, sampling=Sampling(), stop=(), deadline_s=None)
        answer = Answer(params, most, collect)
        logits = self._prefill(Prompt(tokens=tokens), answer, _Facts())
        self._decoder(answer, tokens, None).run(logits)
        answer.close()
        return "".join(pieces)

    def _reserve(self, prompt_tokens: int, params: GenerateParams) -> int:
        """Return how many tokens the answer may have; they are reserved with the prompt."""
        context, max_tokens = self._engine.context_length, params.max_tokens
        room = context - prompt_tokens
        if max_tokens == 0 and room >= 0:
            return 0
        facts = {"prompt_tokens": prompt_tokens, "context": context, "max_tokens": max_tokens}
        if room < 1:
            raise InputError(
                "prompt-too-long",
                f"the prompt has {prompt_tokens} tokens and the context holds {context}, of which "
                "at least 1 is for the answer",
                context=facts,
                hint="shorten the prompt, ask with a context policy that leaves out old turns, or "
                "set the model up with a larger context: edgewise up --context N",
            )
        if max_tokens is None:
            return min(room, DEFAULT_MAX_TOKENS)
        if max_tokens > room:
            raise InputError(
                "context-too-small",
                f"{prompt_tokens} prompt tokens and {max_tokens} for the answer do not fit into a "
                f"context of {context}",
                context=facts,
                hint=f"ask for at most {room} tokens, or set the model up with a larger context: "
                "edgewise up --context N",
            )
        return max_tokens


def _require_structure(structure: Structure, text: str) -> None:
    """Refuse a finished answer that does not have its structure."""
    from edgewise.run.structure import validate  # noqa: PLC0415 - few requests need it

    problems = validate(structure, text)
    if problems:
        raise AdapterError(
            "structure-violated",
            f"the answer does not have the structure that was asked for, in {len(problems)} places",
            context={"problems": len(problems), "kind": structure.kind.value},
            hint="ask again with a higher token limit or another seed; what of a schema is only "
            "checked afterwards is named in the documentation on structured output",
            retryable=True,
        )


class _Facts:
    """What a generation counts besides its answer."""

    def __init__(self) -> None:
        self.prompt_tokens = 0
        self.reused = 0
        self.prefill_ms = 0.0
        self.prompt_logprobs: tuple[TokenLogprob, ...] = ()

    def generated(self, answer: Answer, context_tokens: int) -> Generated:
        """Return the result, now that the answer is closed."""
        sampling = answer.params.sampling
        return Generated(
            finish=answer.finish,
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused,
            completion_tokens=answer.completion_tokens,
            prefill_ms=self.prefill_ms,
            decode_ms=answer.decode_ms,
            seed=sampling.seed if sampling.temperature > 0 else None,
            peak_resident_bytes=peak_resident_bytes(),
            events=tuple(answer.events),
            tool_calls=answer.tool_calls,
            logprobs=tuple(answer.logprobs),
            prompt_logprobs=self.prompt_logprobs,
            speculation=answer.speculation,
            signals=signals_of(
                answer, prompt_tokens=self.prompt_tokens, context_tokens=context_tokens
            ),
        )

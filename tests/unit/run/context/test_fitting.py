"""Fitting: what fits is left alone, what cannot fit is refused, and little is rendered."""

from __future__ import annotations

import math
import time

import pytest
from tests.unit.run.context.conversations import (
    POLICIES,
    Template,
    assistant,
    chat,
    detokenize,
    echo,
    fitted,
    size,
    system,
    text_of,
    tokenize,
    tool,
    user,
)

from edgewise.core.request import ContextPolicy, Message
from edgewise.errors import InputError, IntegrityError
from edgewise.run.context import fit

TRUNCATE = ContextPolicy.TRUNCATE_OLDEST_TURNS
EVERY = [*ContextPolicy]


def long_chat(turns: int) -> tuple[Message, ...]:
    pairs = [(f"question {n} about things", f"answer {n} with words") for n in range(turns)]
    return chat(*pairs, last="and now?", pinned="be brief")


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize("spare", [0, 1, 1000])
def test_what_fits_is_left_alone_and_rendered_once(policy: ContextPolicy, spare: int) -> None:
    messages = long_chat(4)
    template = Template()
    result = fit(
        messages,
        policy=policy,
        room=size(messages) + spare,
        render=template,
        tokenize=tokenize,
        detokenize=detokenize,
    )
    assert result.messages == messages
    assert result.events == ()
    assert len(template.rendered) == 1


def test_reject_refuses_one_token_too_many_with_the_counts() -> None:
    messages = long_chat(4)
    with pytest.raises(InputError) as caught:
        fitted(messages, ContextPolicy.REJECT, size(messages) - 1)
    assert caught.value.code == "prompt-too-long"
    assert caught.value.context["prompt_tokens"] == size(messages)
    assert caught.value.context["room_tokens"] == size(messages) - 1
    assert caught.value.hint


@pytest.mark.parametrize("policy", EVERY)
@pytest.mark.parametrize(
    "messages",
    [
        (user("x" * 500),),
        (system("y" * 500), user("hello")),
        (system("y" * 500),),
        chat(("a", "b"), last="x" * 500),
        chat(("a", "b"), last="hello", pinned="y" * 500),
        (user("a"), assistant("b"), user("c"), assistant("", "c1"), tool("z" * 500, "c1")),
    ],
    ids=["one message", "system", "only system", "last", "pinned", "tool result of the last turn"],
)
def test_a_last_turn_that_does_not_fit_is_refused(
    policy: ContextPolicy, messages: tuple[Message, ...]
) -> None:
    with pytest.raises(InputError) as caught:
        fitted(messages, policy, 200, summarise=echo)
    assert caught.value.code == "prompt-too-long"
    assert caught.value.context["room_tokens"] == 200
    assert caught.value.context["prompt_tokens"] > 200


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("room", [0, -5])
def test_no_room_at_all_is_refused(policy: ContextPolicy, room: int) -> None:
    with pytest.raises(InputError) as caught:
        fitted(long_chat(2), policy, room, summarise=echo)
    assert caught.value.code == "prompt-too-long"


def test_the_fewest_oldest_turns_are_left_out() -> None:
    messages = chat(("OLD", "a"), ("MIDDLE", "b"), ("NEW", "c"), last="now", pinned="PINNED")
    whole = size(messages)
    result = fitted(messages, TRUNCATE, whole - 1)
    assert result.messages == (messages[0], *messages[3:])
    (event,) = result.events
    assert event.code == "context-turns-left-out"
    assert event.context == {
        "policy": "truncate-oldest-turns",
        "turns": 4,
        "turns_left_out": [[0, 0]],
        "prompt_tokens_before": whole,
        "prompt_tokens": size(result.messages),
        "room_tokens": whole - 1,
    }


@pytest.mark.parametrize("turns", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_truncation_is_minimal_and_renders_few_times(turns: int, share: float) -> None:
    messages = long_chat(turns)
    template = Template()
    room = max(int(size(messages) * share), size((messages[0], messages[-1])))
    result = fit(
        messages,
        policy=TRUNCATE,
        room=room,
        render=template,
        tokenize=tokenize,
        detokenize=detokenize,
    )
    (event,) = result.events
    ((first, last),) = event.context["turns_left_out"]
    assert first == 0
    assert size((messages[0], *messages[1 + 2 * last :])) > room  # one turn fewer
    assert len(template.rendered) <= 2 + 3 + math.ceil(math.log2(turns))


def test_the_guesses_spare_most_renders() -> None:
    messages = long_chat(1000)
    template = Template()
    fitted(messages, TRUNCATE, 4000, render=template)
    assert len(template.rendered) <= 6  # whole, least, three to four more, and this test's own


@pytest.mark.parametrize("policy", POLICIES)
def test_a_conversation_too_large_to_render_still_fits(policy: ContextPolicy) -> None:
    template = Template(most_characters=2000)
    messages = long_chat(300)
    result = fitted(messages, policy, 600, render=template, summarise=echo)
    assert result.messages[0] == messages[0]
    assert result.messages[-1].content.endswith("and now?")
    assert result.events[0].context["prompt_tokens_before"] is None


@pytest.mark.parametrize("code", ["template-too-large", "template-too-slow"])
def test_what_a_template_cannot_render_whole_is_cut_only_when_it_is_large(code: str) -> None:
    template = Template()

    def render(messages):
        if sum(len(m.content) for m in messages) > 320:
            raise IntegrityError(code, "too much")
        return template(messages)

    assert fitted(long_chat(10), TRUNCATE, 300, render=render).events
    with pytest.raises(IntegrityError) as caught:
        fitted(long_chat(10), TRUNCATE, 5000, render=render)
    assert caught.value.code == code


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("code", ["content-spells-control-token", "template-rejected"])
def test_what_the_template_refuses_passes_through(policy: ContextPolicy, code: str) -> None:
    def render(messages):
        raise InputError(code, "no")

    with pytest.raises(InputError) as caught:
        fitted(long_chat(10), policy, 100, render=render, summarise=echo)
    assert caught.value.code == code


@pytest.mark.parametrize("policy", POLICIES)
def test_pinned_text_and_the_last_turn_survive_every_policy(policy: ContextPolicy) -> None:
    messages = (
        system("CANARY-ONE"),
        *long_chat(20)[1:-1],
        system("CANARY-TWO"),
        user("CANARY-THREE"),
        assistant("", "c1"),
        tool("CANARY-FOUR", "c1"),
    )
    result = fitted(messages, policy, 400, summarise=echo)
    for canary in ("CANARY-ONE", "CANARY-TWO", "CANARY-THREE", "CANARY-FOUR"):
        assert canary in text_of(result)
    assert result.messages[-2:] == messages[-2:]
    assert result.events


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("empty", ["", " ", "\n"])
def test_empty_contents_do_no_harm(policy: ContextPolicy, empty: str) -> None:
    messages = chat(*[(empty, empty)] * 40, last="now")
    result = fitted(messages, policy, 200, summarise=echo)
    assert result.messages[-1].content.endswith("now")


@pytest.mark.parametrize("policy", POLICIES)
def test_roles_still_alternate(policy: ContextPolicy) -> None:
    template = Template(strict=True)
    messages = long_chat(30)
    for room in range(60, 900, 37):
        result = fitted(messages, policy, room, render=template, summarise=echo)
        assert result.events


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_ten_thousand_turns_take_little_time_of_their_own(policy: ContextPolicy) -> None:
    messages = long_chat(10_000)
    template, spent = Template(), 0.0

    def timed(call):
        def wrapped(*arguments):
            nonlocal spent
            started = time.process_time()
            try:
                return call(*arguments)
            finally:
                spent += time.process_time() - started

        return wrapped

    started = time.process_time()
    fit(
        messages,
        policy=policy,
        room=4096,
        render=timed(template),
        tokenize=timed(tokenize),
        detokenize=timed(detokenize),
        summarise=timed(echo),
    )
    own = time.process_time() - started - spent
    # Processor time, measured 0.04 s to 0.22 s. Quadratic work takes minutes.
    assert own < 3

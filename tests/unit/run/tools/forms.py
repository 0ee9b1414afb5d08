"""Short chat templates that spell tools and calls in the forms that models use."""

# ruff: noqa: RUF001 - DeepSeek's marks hold this bar
from __future__ import annotations

from edgewise.core.bundle import TextSettings
from edgewise.models.template import ChatTemplate
from edgewise.run.tools import ToolFormat, detect_format

_TURNS = """{%- for m in messages %}
{%- if m.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + m.content + '\\n</tool_response><|im_end|>\\n' }}
{%- else %}{{ '<|im_start|>' + m.role + '\\n' + m.content }}CALLS{{ '<|im_end|>\\n' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
_TOOLS = "{% if tools %}{{ '<|im_start|>system\\n' }}{% for t in tools %}{{ t|tojson + '\\n' }}{% endfor %}{{ '<|im_end|>\\n' }}{% endif %}"


def _chatml(calls: str) -> str:
    return _TOOLS + _TURNS.replace("CALLS", calls)


def _each(call: str, between: str = "") -> str:
    loop = "{% for c in m.tool_calls %}{% if not loop.first %}" + between + "{% endif %}"
    return "{% if m.tool_calls %}" + loop + call + "{% endfor %}{% endif %}"


_JSON = "{{ '{\"name\": \"' + c.function.name + '\", \"arguments\": ' + c.function.arguments|tojson + '}' }}"

TEMPLATES = {
    # Hermes, Qwen 2.5 and 3, SmolLM3
    "tagged": _chatml(
        _each("{{ '<tool_call>\\n' }}" + _JSON + "{{ '\\n</tool_call>' }}", "{{ '\\n' }}")
    ),
    # Arguments first, as in Hermes' own template
    "tagged-backwards": _chatml(
        _each(
            "{{ '\\n<tool_call>\\n{ \"arguments\": ' + c.function.arguments|tojson + ', \"name\": \"' + c.function.name + '\"}\\n</tool_call> ' }}"
        )
    ),
    # The whole entry, in tags that are control tokens; Phi-4-mini
    "function-object": _chatml(
        _each("{{ '<|tool_call|>' + (c.function|tojson) + '<|/tool_call|>' }}")
    ),
    "nested": _chatml(_each("{{ '<tool_call>' + (c|tojson) + '</tool_call>' }}", "{{ '\\n' }}")),
    # LFM2, Granite, xLAM
    "tagged-list": _chatml(
        "{% if m.tool_calls %}<|tool_call_start|>["
        + _each(_JSON, ", ")
        + "]<|tool_call_end|>{% endif %}"
    ),
    # A block of JSON, as models that are only prompted write it
    "fenced": _chatml(_each("{{ '```tool_code\\n' }}" + _JSON + "{{ '\\n```' }}", "{{ '\\n' }}")),
    # Command R
    "other-keys": _chatml(
        "{% if m.tool_calls %}<|START_ACTION|>["
        + _each(
            "{{ '{\"tool_name\": \"' + c.function.name + '\", \"parameters\": ' + c.function.arguments|tojson + '}' }}",
            ",",
        )
        + "]<|END_ACTION|>{% endif %}"
    ),
    # Llama 3.1 and 3.2: bare JSON, one call a turn
    "bare": _chatml(
        "{% if m.tool_calls %}{% if m.tool_calls|length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
        "{% set c = m.tool_calls[0] %}"
        "{{ '{\"name\": \"' + c.function.name + '\", \"parameters\": ' + c.function.arguments|tojson + '}' }}{% endif %}{# <|python_tag|> #}"
    ),
    # Functionary 3.1
    "named-tag": _chatml(
        _each(
            "{{ '<function=' + c.function.name + '>' + c.function.arguments|tojson + '</function>' }}"
        )
    ),
    # Mistral, newest
    "mistral-named": _chatml(
        _each("{{ '[TOOL_CALLS]' + c.function.name + '[ARGS]' + c.function.arguments|tojson }}")
    ),
    "mistral-with-id": _chatml(
        _each(
            "{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}"
            "{{ '[TOOL_CALLS]' + c.function.name + '[CALL_ID]' + c.id + '[ARGS]' + c.function.arguments|tojson }}"
        )
    ),
    # DeepSeek V3 and R1
    "deepseek-fenced": _chatml(
        "{% if m.tool_calls %}<｜tool▁calls▁begin｜>"
        + _each(
            "{{ '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + c.function.name + '\\n```json\\n' + c.function.arguments|tojson + '\\n```<｜tool▁call▁end｜>' }}",
            "{{ '\\n' }}",
        )
        + "<｜tool▁calls▁end｜>{% endif %}"
    ),
    # DeepSeek V3.1: arguments as JSON text
    "deepseek-text": _chatml(
        "{% if m.tool_calls %}<｜tool▁calls▁begin｜>"
        + _each(
            "{{ '<｜tool▁call▁begin｜>' + c.function.name + '<｜tool▁sep｜>' + c.function.arguments + '<｜tool▁call▁end｜>' }}"
        )
        + "<｜tool▁calls▁end｜>{% endif %}"
    ),
    # Mistral 7B v0.3 to Small 3.1: ids of nine characters, turns in turn, tools before the last
    "mistral-list": """{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools and loop.last %}{{ '[AVAILABLE_TOOLS] ' + tools|tojson + '[/AVAILABLE_TOOLS]' }}{% endif %}{{ '[INST] ' + m.content + '[/INST]' }}
{%- elif m.tool_calls is defined %}{{ '[TOOL_CALLS] [' }}
{%- for c in m.tool_calls %}
{%- if c.id|length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
{{- (c.function|tojson)[:-1] + ', "id": "' + c.id + '"}' }}{% if not loop.last %}{{ ', ' }}{% endif %}
{%- endfor %}{{ ']' + eos_token }}
{%- elif m.role == 'assistant' %}{{ ' ' + m.content + eos_token }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {"content": ' + m.content|tojson + ', "call_id": "' + m.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}{% endfor %}""",
}

# Templates for which tools have to be explained in the prompt.
UNAWARE = {
    "chatml": _TURNS.replace("CALLS", "").replace(
        "m.role == 'tool'", "m.role == 'tool' and 'x' in 'y'"
    ),
    # Gemma: no system turn, strict alternation
    "alternating": """{{ bos_token }}
{%- if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}{% set rest = messages[1:] %}
{%- else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns must alternate') }}{% endif %}
{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' + (first if loop.first else '') + m.content|trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    # Gemma 1 and 2: refuses the system
    "no-system": """{%- for m in messages %}
{%- if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}
{{- '<start_of_turn>' + m.role + '\\n' + m.content|trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}""",
    # Knows tools; its calls are XML that no JSON parser reads (Qwen3-Coder, GLM)
    "xml": _chatml(
        _each(
            "<tool_call>{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</tool_call>"
        )
    ),
    # Writes the tools, and drops the calls
    "forgetful": _chatml(""),
}


def settings(source: str, *special: str) -> TextSettings:
    return TextSettings(
        template_name="test",
        template_source=source,
        bos_token="<s>",
        eos_token="</s>",
        add_bos=False,
        end_token_ids=(2,),
        special_tokens=special,
    )


def detected(source: str, *special: str) -> ToolFormat:
    return detect_format(ChatTemplate(source=source, name="test"), settings(source, *special))


FORMATS = {name: detected(source) for name, source in TEMPLATES.items()}

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

_PYTHON = (
    "{{ c.function.name + '(' }}{% for k, v in c.function.arguments.items() %}"
    "{{ k + '=' }}{{ (v|tojson) if v is string else (%s) }}{% if not loop.last %}{{ ', ' }}{% endif %}"
    "{% endfor %}{{ ')' }}"
)

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
    # Qwen3-Coder: each argument in tags of its own, texts as they are
    "parameters": _chatml(
        _each(
            "{{ '\\n<tool_call>\\n<function=' + c.function.name + '>\\n' }}"
            "{% for k, v in c.function.arguments.items() %}"
            "{{ '<parameter=' + k + '>\\n' + (v if v is string else v|tojson) + '\\n</parameter>\\n' }}"
            "{% endfor %}{{ '</function>\\n</tool_call>' }}"
        )
    ),
    # The same with Python's constants, as templates that write values as text have them
    "parameters-python": _chatml(
        _each(
            "{{ '<function=' + c.function.name + '>' }}"
            "{% for k, v in c.function.arguments.items() %}"
            "{{ '<parameter=' + k + '>' + v|string + '</parameter>' }}"
            "{% endfor %}{{ '</function>' }}"
        )
    ),
    # GLM 4.5: names and values apart
    "keys-and-values": _chatml(
        _each(
            "{{ '<tool_call>' + c.function.name + '\\n' }}"
            "{% for k, v in c.function.arguments.items() %}"
            "{{ '<arg_key>' + k + '</arg_key>\\n<arg_value>' + (v if v is string else v|tojson) + '</arg_value>\\n' }}"
            "{% endfor %}{{ '</tool_call>' }}",
            "{{ '\\n' }}",
        )
    ),
    # MiniMax: calls in a frame, names as attributes
    "invoked": _chatml(
        "{% if m.tool_calls %}{{ '<calls>\\n' }}"
        + _each(
            "{{ '<invoke name=\"' + c.function.name + '\">\\n' }}"
            "{% for k, v in c.function.arguments.items() %}"
            "{{ '<parameter name=\"' + k + '\">' + (v if v is string else v|tojson) + '</parameter>\\n' }}"
            "{% endfor %}{{ '</invoke>\\n' }}"
        )
        + "{{ '</calls>' }}{% endif %}"
    ),
    # Every value as JSON, so that nothing has to be guessed
    "parameters-json": _chatml(
        _each(
            "{{ '<call:' + c.function.name + '>' }}"
            "{% for k, v in c.function.arguments.items() %}"
            "{{ '<arg:' + k + '>' + v|tojson + '</arg>' }}"
            "{% endfor %}{{ '</call>' }}"
        )
    ),
    # LFM2: Python's calls in a list between marks
    "python-list": _chatml(
        "{% if m.tool_calls %}<|tool_call_start|>["
        + _each(_PYTHON.replace("%s", "v|string"), ", ")
        + "]<|tool_call_end|>{% endif %}"
    ),
    # Gemma 3 as it is prompted: a line each in a block
    "python-block": _chatml(
        "{% if m.tool_calls %}{{ '```tool_code\\n' }}"
        + _each(_PYTHON.replace("%s", "v|string"), "{{ '\\n' }}")
        + "{{ '\\n```' }}{% endif %}"
    ),
    # Llama 3.2 1B and 3B: the list is the whole answer; here with JSON's constants
    "python-bare": _chatml(
        "{% if m.tool_calls %}[" + _each(_PYTHON.replace("%s", "v|tojson"), ", ") + "]{% endif %}"
    ),
    # A pair of marks around each
    "python-each": _chatml(
        _each("<call>" + _PYTHON.replace("%s", "v|tojson") + "</call>", "{{ '\\n' }}")
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
    # Knows tools; its calls have no name
    "xml": _chatml(
        _each(
            "<tool_call>{% for k, v in c.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</tool_call>"
        )
    ),
    # gpt-oss: calls are turns in channels of their own
    "harmony": """{%- if tools %}{{ '<|start|>developer<|message|>' }}{% for t in tools %}{{ t|tojson }}{% endfor %}{{ '<|end|>' }}{% endif %}
{%- for m in messages %}
{%- if m.tool_calls %}{% set c = m.tool_calls[0] %}{{ '<|start|>assistant<|channel|>commentary to=functions.' + c.function.name + ' <|constrain|>json<|message|>' + c.function.arguments|tojson + '<|call|>' }}
{%- elif m.role == 'tool' %}{{ '<|start|>functions to=assistant<|channel|>commentary<|message|>' + m.content|tojson + '<|end|>' }}
{%- elif m.role == 'assistant' %}{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}
{%- else %}{{ '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}""",
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

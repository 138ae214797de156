"""Chat templates of published models, written from their documentation, beside the rendering of transformers."""

import copy
import time
import tracemalloc
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from triptych.data import template_sandbox
from triptych.data.chat_template import ChatTemplate
from triptych.data.example import Message, check_conversation
from triptych.data.template_sandbox import LARGEST, time_limit

CHATML = """
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"""
QWEN = """
{%- if messages[0]['role'] != 'system' %}
{{- '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif %}
""" + CHATML.strip()  # fmt: skip
LLAMA_2 = """
{%- if messages[0]['role'] == 'system' %}
{%- set turns, system = messages[1:], '<<SYS>>\n' + messages[0]['content'] + '\n<</SYS>>\n\n' %}
{%- else %}
{%- set turns, system = messages, '' %}
{%- endif %}
{%- for message in turns %}
{%- if message['role'] == 'user' %}
{{- bos_token + '[INST] ' + (system if loop.first else '') + message['content'].strip() + ' [/INST]' }}
{%- else %}
{{- ' ' + message['content'].strip() + ' ' + eos_token }}
{%- endif %}
{%- endfor %}"""
LLAMA_3 = """
{%- for message in messages %}
{{- (bos_token if loop.first else '') + '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"""
MISTRAL = """
{{- bos_token }}
{%- for message in messages %}
{%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{%- if message['role'] == 'user' %}
{{- '[INST] ' + message['content'] + ' [/INST]' }}
{%- else %}
{{- ' ' + message['content'] + eos_token }}
{%- endif %}
{%- endfor %}"""
ZEPHYR = """
{%- for message in messages %}
{{- '<|' + message['role'] + '|>\n' + message['content'] + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"""
PHI_3 = """
{%- for message in messages %}
{{- '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"""
GEMMA = """
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{- '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}"""
VICUNA = """
{%- for message in messages %}
{%- if message['role'] == 'system' %}{{- message['content'] + ' ' }}
{%- elif message['role'] == 'user' %}{{- 'USER: ' + message['content'] + ' ' }}
{%- else %}{{- 'ASSISTANT: ' + message['content'] + eos_token }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- 'ASSISTANT:' }}{%- endif %}"""
TULU = """
{%- for message in messages %}
{%- if message['role'] == 'assistant' %}
{{- '<|assistant|>\n' + message['content'] + eos_token + ('' if loop.last else '\n') }}
{%- else %}
{{- '<|' + message['role'] + '|>\n' + message['content'] + '\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- endif %}"""
S = {"bos_token": "<s>", "eos_token": "</s>"}
TEMPLATES: dict[str, tuple[str, dict[str, str], str, list[str]]] = {
    "ChatML": (
        CHATML, {"eos_token": "<|im_end|>"},
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWhen?<|im_end|>\n<|im_start|>assistant\nNow.<|im_end|>\n",
        ["Hello.<|im_end|>", "Now.<|im_end|>"],
    ),
    "Qwen 2.5": (
        QWEN, {"eos_token": "<|im_end|>"},
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi!<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nWhen?<|im_end|>\n<|im_start|>assistant\nNow.<|im_end|>\n",
        ["Hello.<|im_end|>", "Now.<|im_end|>"],
    ),
    "Llama 2": (
        LLAMA_2, S,
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi! [/INST] Hello. </s><s>[INST] When? [/INST] Now. </s>",
        [" Hello. </s>", " Now. </s>"],
    ),
    "Llama 3": (
        LLAMA_3, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"},
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhen?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nNow.<|eot_id|>",
        ["Hello.<|eot_id|>", "Now.<|eot_id|>"],
    ),
    "Mistral": (
        MISTRAL, S, "<s>[INST] Hi! [/INST] Hello.</s>[INST] When? [/INST] Now.</s>", [" Hello.</s>", " Now.</s>"],
    ),
    "Zephyr": (
        ZEPHYR, S,
        "<|system|>\nBe brief.</s>\n<|user|>\nHi!</s>\n<|assistant|>\nHello.</s>\n<|user|>\nWhen?</s>\n"
        "<|assistant|>\nNow.</s>\n",
        ["Hello.</s>", "Now.</s>"],
    ),
    "Phi 3": (
        PHI_3, {"eos_token": "<|end|>"},
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi!<|end|>\n<|assistant|>\nHello.<|end|>\n<|user|>\nWhen?<|end|>\n"
        "<|assistant|>\nNow.<|end|>\n",
        ["Hello.<|end|>", "Now.<|end|>"],
    ),
    "Gemma": (
        GEMMA, {"bos_token": "<bos>", "eos_token": "<end_of_turn>"},
        "<bos><start_of_turn>user\nHi!<end_of_turn>\n<start_of_turn>model\nHello.<end_of_turn>\n"
        "<start_of_turn>user\nWhen?<end_of_turn>\n<start_of_turn>model\nNow.<end_of_turn>\n",
        ["Hello.<end_of_turn>", "Now.<end_of_turn>"],
    ),
    "Vicuna": (
        VICUNA, {"eos_token": "</s>"},
        "Be brief. USER: Hi! ASSISTANT: Hello.</s>USER: When? ASSISTANT: Now.</s>",
        [" Hello.</s>", " Now.</s>"],
    ),
    "Tulu 3": (
        TULU, {"eos_token": "<|endoftext|>"},
        "<|system|>\nBe brief.\n<|user|>\nHi!\n<|assistant|>\nHello.<|endoftext|>\n<|user|>\nWhen?\n<|assistant|>\n"
        "Now.<|endoftext|>",
        ["Hello.<|endoftext|>", "Now.<|endoftext|>"],
    ),
}  # fmt: skip
TALK = [
    Message("system", "Be brief."), Message("user", "Hi!"), Message("assistant", "Hello."), Message("user", "When?"),
    Message("assistant", "Now."),
]  # fmt: skip
every_template = pytest.mark.parametrize("name", TEMPLATES)


def talk(name: str) -> list[Message]:
    """Mistral's and Gemma's have no system."""
    return TALK[1:] if name in ("Mistral", "Gemma") else TALK


def by_transformers(name: str, messages: list[Message], *, asks: bool = False) -> str:
    source, special, _, _ = TEMPLATES[name]
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")), **special)
    plain = [{"role": message.role, "content": message.content} for message in messages]
    text: str = tokenizer.apply_chat_template(
        plain, chat_template=source, tokenize=False, add_generation_prompt=asks
    )  # fmt: skip
    return text


def test_a_template_that_has_rendered_can_be_copied() -> None:
    """A moving average of the weights copies the task, and with it its template."""
    template = ChatTemplate("{{ messages[0].content }}", {})
    said = (Message("user", "hello"),)
    assert template.render(said) == copy.deepcopy(template).render(said) == "hello"


@every_template
def test_texts_are_those_of_transformers_and_of_the_documentation(name: str) -> None:
    source, special, expected, _ = TEMPLATES[name]
    template = ChatTemplate(source, special)
    assert template.render(talk(name)) == expected
    for stop in range(1, len(talk(name)) + 1):
        for asks in (False, True):
            messages = talk(name)[:stop]
            assert template.render(messages, asks=asks) == by_transformers(name, messages, asks=asks)


@every_template
def test_answers_are_found(name: str) -> None:
    source, special, expected, answers = TEMPLATES[name]
    text, found = ChatTemplate(source, special).answers(talk(name))
    assert text == expected
    assert [text[start:stop] for start, stop in found] == answers


def test_a_template_that_writes_earlier_answers_in_another_way() -> None:
    """As those do that leave out how an earlier answer was thought of."""
    source = CHATML.replace("message['content']", "(message['content'] if loop.last else message['content'][:3])")
    with pytest.raises(ValueError, match="renders message 3 differently if others follow it"):
        ChatTemplate(source, {"eos_token": "<|im_end|>"}).answers(TALK)


def test_a_template_that_leaves_answers_out() -> None:
    with pytest.raises(ValueError, match="the chat template does not render message 2"):
        ChatTemplate("{% for m in messages %}{{ m.content if m.role == 'user' }}{% endfor %}", S).answers(TALK[1:3])


@given(st.lists(st.text(min_size=1), min_size=2, max_size=6).filter(lambda texts: len(texts) % 2 == 0))
def test_what_is_said_stands_in_the_text_as_it_is(texts: list[str]) -> None:
    messages = [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(texts)]
    text, found = ChatTemplate(CHATML, {"eos_token": "<|im_end|>"}).answers(messages)
    assert [text[start:stop] for start, stop in found] == [f"{answer}<|im_end|>" for answer in texts[1::2]]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (MISTRAL, "the chat template fails: Conversation roles must alternate"),
        ("{{ messages[7]['role'] }}", "the chat template fails: .*has no element 7"),
        ("{% for %}", "the chat template fails: "),
        ("{{ ''.__class__.__mro__ }}", "the chat template fails: access to attribute '__class__' .* unsafe"),
        ("{{ messages.append(1) }}", "the chat template fails: .*append.*unsafe|not safely callable"),
    ],
)
def test_a_template_that_fails(source: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        ChatTemplate(source, S).render(TALK)


DOUBLED = (
    "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x OP n.x %}{% endfor %}{{ n.x | length }}"
)
NESTED = "{% set n = namespace(x=['ab']) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
HUGE = {
    "a text times a number": "{{ 'a' * 10000000000 }}",
    "a number times a list": "{{ (10000000000 * ['a']) | length }}",
    "bytes times a number": "{{ ('a'.encode() * 10000000000) | length }}",
    "a power": "{{ 10 ** 10000000000 }}",
    "products": "{% set n = namespace(y=9) %}{% for i in range(50) %}{% set n.y = n.y * n.y %}{% endfor %}{{ n.y }}",
    "a width of %": "{{ '%10000000000d' % 1 }}",
    "a width of % that is given": "{{ '%*d' % (10000000000, 1) }}",
    "the filter format": "{{ '%10000000000d' | format(1) }}",
    "the method format": "{{ '{:10000000000}'.format(1) }}",
    "the method format, nested": "{{ '{:{}}'.format(1, 10000000000) }}",
    "concatenation": DOUBLED.replace("OP", "~"),
    "addition": DOUBLED.replace("OP", "+"),
    "replace": "{% set a = 'a' * 1000000 %}{{ a | replace('a', a) | length }}",
    "the method replace": "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) | length }}",
    "join": "{% set a = 'a' * 1000000 %}{{ ([1] * 10000) | join(a) | length }}",
    "the method join": "{% set a = 'a' * 1000000 %}{{ a.join(['b'] * 40000) | length }}",
    "center": "{{ 'a' | center(10000000000) | length }}",
    "ljust": "{{ 'a'.ljust(10000000000) | length }}",
    "indent": "{% set a = 'a\n' * 1000000 %}{{ a | indent(40000) | length }}",
    "tojson": "{{ [[1] * 1000] | tojson(indent=1000000000) | length }}",
    "batch": "{{ [1] | batch(10000000000, 1) | list | length }}",
    "to_bytes": "{{ (1).to_bytes(10000000000, 'big') | length }}",
    "translate": "{% set a = 'a' * 1000000 %}{{ a.translate({97: a}) | length }}",
    "round": "{{ 1.5 | round(1000000000, 'ceil') }}",
    "lists in lists, written": NESTED + "{{ n.x }}",
    "lists in lists, as text": NESTED + "{{ n.x | string | length }}",
    "lists in lists, as JSON": NESTED + "{{ n.x | tojson | length }}",
    "lists in lists, concatenated": NESTED + "{{ (n.x ~ '') | length }}",
    "lists in lists, formatted": NESTED + "{{ ('%s' % [n.x]) | length }}",
    "what is written": "{% for i in range(200) %}{{ 'a' * 100000 }}{% endfor %}",
    "what a variable holds": "{% set x %}{% for i in range(200) %}{{ 'a' * 100000 }}{% endfor %}{% endset %}",
    "a macro": "{% macro m() %}{% for i in range(200) %}{{ 'a' * 100000 }}{% endfor %}{% endmacro %}{{ m() | length }}",
}


@pytest.mark.parametrize("source", HUGE.values(), ids=HUGE)
def test_a_template_that_allocates_is_rejected_before_it_does(source: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"fails: more than 10,000,000 char|fails: an integer of"):
            ChatTemplate(source, S).render(TALK)
        assert tracemalloc.get_traced_memory()[1] < 40 * LARGEST
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "source",
    [
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% macro m(n) %}{{ caller() }}{% call m(n) %}{{ m(n) }}{%endcall%}{% endmacro %}{% call m(1) %}{% endcall %}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "{% if x %}" * 300 + "{% endif %}" * 300,
        "{{ " + "-" * 5000 + "1 }}",
        "{{ 2.0 ** 5000 }}",
        "{{ '%c' % 5000000 }}",
        "{{ 'a'.encode().decode('utf-16') }}",
    ],
)
def test_a_template_that_recurses_or_overflows_ends_in_one_line(source: str) -> None:
    with pytest.raises(ValueError, match=r"^the chat template fails: .*") as caught:
        ChatTemplate(source, S).render(TALK)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in 'a' * 1000000 %}{% for j in 'a' * 1000000 %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_keeps_to_a_time_limit(source: str) -> None:
    started = time.process_time()
    with time_limit(0.05), pytest.raises(ValueError, match=r"^the chat template fails: .* longer than 0\.05 s$"):
        ChatTemplate(source, S).render(TALK)
    assert time.process_time() - started < 10  # it would take hours
    assert ChatTemplate(CHATML, {"eos_token": "<|im_end|>"}).render(TALK) == TEMPLATES["ChatML"][2]


def test_a_finalizer_does_not_swallow_the_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python ignores what a finalizer raises, and ends the tracing that raised it."""

    class Dropped:
        def __del__(self) -> None:
            end = time.monotonic() + 0.002
            while time.monotonic() < end:
                pass

    monkeypatch.setattr(template_sandbox, "_check_call", lambda name, given: bool(Dropped()))
    source = "{% macro m() %}{% endmacro %}{% for i in range(500) %}{{ m() }}{% endfor %}"
    with time_limit(0.05), pytest.raises(ValueError, match=r"longer than 0\.05 s$"):
        ChatTemplate(source, S).render(TALK)


def test_what_templates_are_given_is_what_transformers_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is taken from a call of its ``apply_chat_template``."""
    given: dict[str, Any] = {}
    recorder = SimpleNamespace(render=lambda **variables: given.update(variables) or "")
    with monkeypatch.context() as patched:
        patched.setattr("transformers.utils.chat_template_utils._compile_jinja_template", lambda source: recorder)
        by_transformers("Llama 2", TALK)
    assert {"messages", "tools", "documents", "add_generation_prompt", "bos_token"} <= given.keys()
    source = "|".join(f"{{{{ {name} is defined }}}} {{{{ {name} is none }}}}" for name in sorted(given))
    expected = "|".join(f"True {given[name] is None}" for name in sorted(given))
    assert ChatTemplate(source, S).render(TALK) == expected


USES = {
    "generation": "{% for m in messages %}{% if m.role == 'assistant' %}\n{% generation %}\n {{- m.content }}\n"
    "{% endgeneration %}\n{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "generation with a variable": "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{%- endgeneration -%} {{ x }}",
    "tools": "{% if tools %}T{% elif tools is none %}N{% endif %}{{ tools }}{% if not documents %}D{% endif %}",
    "tojson": "{{ {'b': 'é<&', 'a': [1, none]} | tojson }}",
    "tojson, sorted": "{{ {'b': 'é', 'a': [1]} | tojson(sort_keys=true, ensure_ascii=True) }}",
    "tojson, by place": "{{ {'b': 'é', 'a': [1]} | tojson(true, 2) }}",
    "tojson, separators": "{{ messages | tojson(separators=(',', ':'), indent=none) }}",
    "namespace": "{% set n = namespace(found=false) %}{% for m in messages %}"
    "{% set n.found = m.role == 'user' or n.found %}{% endfor %}{{ n.found }}{{ dict(a=1) | tojson }}",
    "break": "{% for m in messages %}{% if loop.index0 == 2 %}{% break %}"
    "{% endif %}{{ m.content ~ '/' ~ loop.index }}{% endfor %}",
    "operators": "{{ 7 % 3 }}{{ 2 ** 3 }}{{ 'ab' * 2 }}{{ [1] + [2] }}{{ '%s of %d %%' % ('a', 3) }}{{ 1 ~ none ~ x }}",
    "strings": "{{ 'a-b'.split('-') | join(', ') }}{{ 'x'.replace('x', 'yy') | indent(2, true) }}"
    "{{ '{} {:>4}'.format(1, 'a') }}",
}


@pytest.mark.parametrize("name", USES)
def test_what_templates_use_is_read_as_transformers_reads_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEMPLATES, name, (USES[name], S, "", []))
    assert ChatTemplate(USES[name], S).render(TALK) == by_transformers(name, TALK)


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ("", "an empty conversation"),
        ("u", "the last message has the role 'user'; expected 'assistant'"),
        ("ua a", "message 3: 'assistant' out of turn; expected an optional system message, then user and assistant"),
        ("a", "message 1: 'assistant' out of turn"),
        ("usa", "message 2: 'system' out of turn"),
        ("uua", "message 2: 'user' out of turn"),
        ("sa", "message 2: 'assistant' out of turn"),
        ("ut", "message 2: role 'tool'; expected system, user, assistant"),
    ],
)
def test_what_is_no_conversation(roles: str, reason: str) -> None:
    names = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    with pytest.raises(ValueError, match=reason):
        check_conversation([Message(names[role], "x") for role in roles.replace(" ", "")])


def test_an_empty_message() -> None:
    with pytest.raises(ValueError, match="message 1 of user is empty"):
        check_conversation([Message("user", " \n"), Message("assistant", "Yes?")])
    check_conversation(TALK)

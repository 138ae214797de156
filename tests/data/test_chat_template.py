"""Chat templates of published models, written from their documentation, beside the rendering of transformers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from triptych.data.chat_template import ChatTemplate
from triptych.data.example import Message, check_conversation

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
    Message("system", "Be brief."),
    Message("user", "Hi!"),
    Message("assistant", "Hello."),
    Message("user", "When?"),
    Message("assistant", "Now."),
]
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
    with pytest.raises(ValueError, match="writes message 3 in another way where others follow it"):
        ChatTemplate(source, {"eos_token": "<|im_end|>"}).answers(TALK)


def test_a_template_that_leaves_answers_out() -> None:
    with pytest.raises(ValueError, match="the chat template does not write message 2"):
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


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        ("", "an empty conversation"),
        ("u", "the last message is of 'user'; expected an answer of 'assistant'"),
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

"""How conversations are laid out and scored, and what is answered in them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from predicting import GREEDY, evaluating, in_double, make_context, predict
from small_models import build
from triptych.data import IGNORE_INDEX, Bytes, EncodedExample, Example, Message, Tokenizer, collate
from triptych.data.example import conversation, each_answer
from triptych.models.generation import Sampling
from triptych.tasks import Chat, TaskContext, TextToText

CHATML = """
{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"""
every_architecture = pytest.mark.parametrize("architecture", ["full", "decoder_only", "prefix_lm"])
every_template = pytest.mark.parametrize("template", [None, CHATML], ids=["plain", "roles"])
texts = st.text(st.sampled_from("ab <|\n.é"), min_size=1, max_size=8).filter(str.strip)


def talk(*contents: str, system: bool = False) -> Example:
    roles = ("system", "user", "assistant")
    messages = [
        Message(roles[i] if system and i < 3 else roles[1 + (i - system) % 2], content)
        for i, content in enumerate(contents)
    ]
    return conversation(messages)


def context_of(architecture: str, tokenizer: Tokenizer, max_length: int = 96) -> TaskContext:
    network = build(architecture, vocab_size=tokenizer.vocab_size, max_length=max_length)
    return make_context(network, tokenizer, max_length)


SETTINGS = GREEDY | {"label_smoothing": 0.0, "max_new_tokens": 12}


def make_task(architecture: str, template: str | None = None, **options: Any) -> Chat:
    context = context_of(architecture, Bytes().train([]), **options)
    return evaluating(Chat(context, chat_template=template, **SETTINGS))


def written(task: Chat, item: EncodedExample) -> str:
    """What an item is scored on, with the names of special tokens."""
    names = task.tokenizer.ids_to_tokens([int(i) for i in item.labels[item.labels != IGNORE_INDEX]])
    return bytes_of(names)


def bytes_of(names: Sequence[str]) -> str:
    return b"".join(
        bytes([int(name[3:5], 16)]) if name.startswith("<0x") else name.encode() for name in names
    ).decode()  # fmt: skip


class TestLayouts:
    @every_architecture
    @given(asked=texts, answer=texts)
    def test_a_single_turn_is_a_source_and_its_target(self, architecture: str, asked: str, answer: str) -> None:
        """But for sep, which the encoder reads behind what a user says."""
        other = TextToText(context_of(architecture, Bytes().train([])), **SETTINGS)
        task = make_task(architecture)
        (expected,) = other.encode([Example(asked, target=answer)])
        for encode in (task.encode, task.encode_training):
            (item,) = encode([talk(asked, answer)])
            np.testing.assert_array_equal(item.inputs, expected.inputs)
            np.testing.assert_array_equal(item.labels, expected.labels)
            assert item.prefix == expected.prefix
            if expected.source is not None and item.source is not None:
                special = task.tokenizer.special
                inner = expected.source.tolist()[1:-1]
                assert item.source.tolist() == [special.bos, *inner, special.sep, special.eos]

    @every_template
    @given(contents=st.lists(texts, min_size=2, max_size=6).filter(lambda found: len(found) % 2 == 0))
    def test_a_decoder_is_scored_on_the_answers_and_their_ends(self, template: str | None, contents: list[str]) -> None:
        task = make_task("decoder_only", template)
        (item,) = task.encode_training([talk(*contents)])
        assert written(task, item) == "".join(f"{answer}<eos>" for answer in contents[1::2])
        read = bytes_of(task.tokenizer.ids_to_tokens([int(i) for i in item.inputs]))
        messages = [Message(("user", "assistant")[i % 2], text) for i, text in enumerate(contents)]
        whole = task.compiled_template.render(messages)
        assert whole.startswith(read)

    @every_template
    @pytest.mark.parametrize("architecture", ["full", "prefix_lm"])
    def test_the_others_read_one_answer_at_a_time(self, architecture: str, template: str | None) -> None:
        task, example = make_task(architecture, template), talk("Be brief.", "a", "b", "c", "d", system=True)
        items = task.encode_training([example])
        assert [written(task, item) for item in items] == ["b<eos>", "d<eos>"]
        evaluated = task.encode(each_answer(example))
        for item, expected in zip(items, evaluated, strict=True):
            np.testing.assert_array_equal(item.inputs, expected.inputs)
            np.testing.assert_array_equal(item.labels, expected.labels)
        given = evaluated[1].source if architecture == "full" else evaluated[1].inputs[: evaluated[1].prefix + 1]
        assert given is not None
        text = bytes_of(task.tokenizer.ids_to_tokens([int(i) for i in given]))
        rendered = task.compiled_template.render((example.messages or ())[:-1], asks=True)
        assert text == (f"<bos>{rendered}<eos>" if architecture == "full" else rendered)

    @every_template
    def test_one_reading_scores_all_answers_as_they_are_scored_one_by_one(self, template: str | None) -> None:
        task = in_double(make_task("decoder_only", template))
        example = talk("a bc", "de", "f", "ghi", "j", "k.")
        with torch.no_grad():
            items = [*task.encode_training([example]), *task.encode(each_answer(example))]
            sums = [task.summed_loss(task.forward(batch), batch) for batch in (collate([item]) for item in items)]
        torch.testing.assert_close(sums[0], torch.stack(sums[1:]).sum(), rtol=1e-10, atol=0)

    @every_architecture
    def test_what_is_too_long_is_forgotten_from_its_beginning(self, architecture: str) -> None:
        task = make_task(architecture, max_length=30)
        example = talk("x" * 40, "one", "and then", "two")
        (item,) = task.enforce_max_length(task.encode([example]))
        assert item.longest <= 30
        assert written(task, item) == "two<eos>"
        given = item.source if item.source is not None else item.inputs[: item.prefix + 1]
        assert bytes_of(task.tokenizer.ids_to_tokens([int(i) for i in given])).endswith(
            "one<eos>and then<sep>" + ("<eos>" if architecture == "full" else "")
        )
        for item in task.enforce_max_length(task.encode_training([example])):
            assert item.longest <= 30
        assert task.is_forgetful((example.messages or ())[:-1])
        assert not task.is_forgetful([Message("user", "and then")])


class TestAnswers:
    @every_architecture
    @pytest.mark.parametrize("temperature", [0.0, 2.0])
    def test_a_reply_is_told_as_it_is_written(self, architecture: str, temperature: float) -> None:
        task = make_task(architecture)
        task.sampling = Sampling(temperature, seed=3)
        asked = [Message("user", "é?"), Message("assistant", "b"), Message("user", "c")]
        parts = list[str]()
        answer = task.reply(asked, parts.append)
        assert "".join(parts) == answer == predict(task, [asked])[0]
        assert len(parts) > 1
        assert type(task.sampling) is Sampling

    def test_a_text_is_what_a_user_says_first(self) -> None:
        task = make_task("decoder_only", CHATML)
        assert predict(task, ["a", "bc"]) == predict(task, [[Message("user", "a")], [Message("user", "bc")]])

    def test_examples_are_asked_without_their_answer(self) -> None:
        task, example = make_task("full"), talk("a", "b", "c", "d")
        assert [message.content for message in task.model_input(example)] == ["a", "b", "c"]
        assert task.reference(example) == "d"


class TestMistakes:
    @pytest.mark.parametrize(
        ("messages", "reason"),
        [
            ([], "an empty conversation"),
            ([Message("user", "a"), Message("assistant", "b")], "the last message is of 'assistant'; expected one of"),
            ([Message("user", "a<sep>b")], "message 1 has '<sep>' in it, which is the name of a special token"),
            ([Message("user", "a"), Message("user", "b")], "message 2: 'user' out of turn"),
        ],
    )
    def test_what_cannot_be_asked(self, messages: list[Message], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            predict(make_task("decoder_only"), [messages])

    def test_an_example_that_cannot_be_laid_out(self, tmp_path: Any) -> None:
        task = make_task("decoder_only")
        with pytest.raises(ValueError, match="'a': there are no messages"):
            task.encode([Example("a", target="b")])
        named = replace(talk("a", "b<eos>"), place=(tmp_path / "t.jsonl", 7))
        with pytest.raises(ValueError, match=r"t.jsonl, line 7: message 2 has '<eos>' in it"):
            task.encode([named])

    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            ("{% for %}", "task.chat_template: the chat template fails: "),
            (
                "{% for message in messages %}{{ message.content }}{% endfor %}",
                "task.chat_template: no special token of the ",
            ),
        ],
    )
    def test_a_template_that_cannot_serve(self, template: str, reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            make_task("decoder_only", template)

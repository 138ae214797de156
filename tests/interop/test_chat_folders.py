"""Models of conversations as folders: templates come along, and transformers writes the same answers."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers as hf
from tokenizers import models, pre_tokenizers

import oracle
from predicting import in_double, predict
from triptych.data import Message, PretrainedTokenizer
from triptych.interop import import_folder, save_pretrained

PAD, EOS, END, START, NEWLINE, VOCAB = 0, 1, 2, 3, 4, 24
WORDS = ["<pad>", "<eos>", "<end>", "<start>", "\n", "user", "assistant", "system", *(f"w{i}" for i in range(8, VOCAB))]
TEMPLATE = """
{%- for message in messages %}
{{- '<start>' + message['role'] + '\\n ' + message['content'] + '<end>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start>assistant\\n ' }}{%- endif %}"""
TALKS = [
    [Message("user", "w9 w10")],
    [Message("user", "w9 w10"), Message("assistant", "w13"), Message("user", "w8")],
    [Message("system", "w20 w21"), Message("user", "w11 w15 w15 w9")],
]


def published(folder: Path, where: str) -> tuple[Any, Any]:
    """A small GPT-2 with a template, which stands in one of the places that folders have for it."""
    config = hf.GPT2Config(
        vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=2, n_positions=60, bos_token_id=EOS, eos_token_id=EOS,
        pad_token_id=PAD,
    )  # fmt: skip
    model = oracle.randomized(hf.GPT2LMHeadModel(config), 4)
    model.save_pretrained(folder)
    (folder / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [END, EOS], "pad_token_id": PAD, "bos_token_id": EOS})
    )
    backend = tokenizers.Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"\n|[^ \n]+"), "removed", invert=True)
    names = {"bos_token": "<eos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<pad>"}
    texts = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, padding_side="left", additional_special_tokens=["<start>", "<end>"], **names
    )
    texts.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    if where == "file":
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    else:
        named = [{"name": "tool_use", "template": "?"}, {"name": "default", "template": TEMPLATE}]
        said = TEMPLATE if where == "text" else named
        path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": said}))
    return type(model).from_pretrained(folder).double().eval(), hf.AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("where", ["file", "text", "list"])
def test_an_imported_model_answers_as_transformers_does(tmp_path: Path, where: str) -> None:
    model, texts = published(tmp_path / "theirs", where)
    assert PretrainedTokenizer(dir=str(tmp_path / "theirs")).train([]).special.chat_template == TEMPLATE
    task: Any = import_folder(tmp_path / "theirs", tmp_path / "chat.ckpt", "chat").task
    assert task.end == END
    task.max_new_tokens = 10
    assert predict(in_double(task), TALKS) == [oracle.reply(model, texts, talk, max_new_tokens=10) for talk in TALKS]
    save_pretrained(tmp_path / "chat.ckpt", tmp_path / "ours")
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for talk in TALKS:
        plain = [{"role": message.role, "content": message.content} for message in talk]
        rendered = [
            t.apply_chat_template(plain, tokenize=False, add_generation_prompt=True) for t in (texts, again)
        ]  # fmt: skip
        assert rendered[0] == rendered[1]
    ours = hf.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").double().eval()
    assert [oracle.reply(ours, again, talk, max_new_tokens=10) for talk in TALKS] == [
        oracle.reply(model, texts, talk, max_new_tokens=10) for talk in TALKS
    ]

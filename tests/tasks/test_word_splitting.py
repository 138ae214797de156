"""BLEU and ROUGE of text in any script: what their tokenizers split, and what they do not."""

import logging
import random
import re
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
from omegaconf import OmegaConf
from torchmetrics.functional.text.rouge import rouge_score

from predicting import GREEDY, make_context
from small_models import build
from triptych.config import ConfigError
from triptych.data import Characters, Example
from triptych.evaluate import set_tokenizers
from triptych.tasks import Chat, Task, TextToText, Transcription, Translation
from triptych.tasks import bleu as scores
from triptych.tasks.text_to_text import ROUGE
from triptych.training import TrainingModule

TEXTS = {
    "Chinese": ["他昨天在图书馆里读了一本很有意思的书", "我们明天早上八点钟在火车站见面", "今天天气很好"],
    "Japanese": ["昨日は図書館でとても面白い本を読みました", "明日の朝八時に駅で会いましょう"],
    "Thai": ["เมื่อวานเขาอ่านหนังสือที่ห้องสมุด", "พรุ่งนี้เช้าเราจะพบกันที่สถานีรถไฟ"],
    "Russian": ["вчера он читал книгу в библиотеке", "завтра утром мы встретимся на вокзале"],
    "Arabic": ["قرأ كتابا في المكتبة أمس", "سنلتقي في المحطة صباح الغد"],
    "Hindi": ["कल उसने पुस्तकालय में एक किताब पढ़ी", "हम कल सुबह स्टेशन पर मिलेंगे"],
    "Korean": ["그는 어제 도서관에서 책을 읽었다", "내일 아침 역에서 만나요"],
    "German": ["Gestern las er in der Bücherei ein Buch", "Wir treffen uns früh am Bahnhof"],
    "English": ["Yesterday he read a book in the library", "We shall meet at the station"],
    "segmented Chinese": ["他 昨天 在 图书馆 里 读 了 一 本 很 有意思 的 书", "我们 明天 早上 八点钟 在 火车站 见面"],
}
WITHOUT_BLANKS = {"Chinese", "Japanese", "Thai"}
NOT_LATIN = {*TEXTS} - {"German", "English"}
NOT_SPLIT = {
    ("bleu", "13a"): WITHOUT_BLANKS, ("bleu", "intl"): WITHOUT_BLANKS, ("bleu", "none"): WITHOUT_BLANKS,
    ("bleu", "char"): set(), ("bleu", "zh"): {"Thai"}, ("rouge", "google"): NOT_LATIN,
    ("rouge", "whitespace"): WITHOUT_BLANKS, ("rouge", "characters"): set(),
}  # fmt: skip


def make_task(kind: type[Task], **options: Any) -> Any:
    tokenizer = Characters().train(["abc"])
    network = build("decoder_only", vocab_size=tokenizer.vocab_size, num_outputs=tokenizer.vocab_size)
    context = make_context(network, tokenizer, 6, truncates=False)
    settings = GREEDY | {"label_smoothing": 0.0, "max_new_tokens": 4}
    return kind(context, **settings | options)  # type: ignore[call-arg]


def scored(task: Any, outputs: list[str], references: list[str]) -> dict[str, float]:
    """The scores of a test, in two batches."""
    metrics = TrainingModule(task).metrics_of("test")
    for metric in metrics.values():
        metric.reset()
    for part in (slice(0, 2), slice(2, None)):
        if outputs[part]:
            task.score(metrics, outputs[part], references[part])
    return {name: float(metrics[name].compute()) for name in (*ROUGE, "bleu") if name in metrics}


def nearly(texts: list[str]) -> list[str]:
    """The texts with a few characters left out."""
    draws = random.Random(0)
    return ["".join(c for c in text if draws.random() > 0.1) for text in texts]


@pytest.mark.parametrize("tokenizer", ["13a", "zh", "char", "intl", "none"])
def test_bleu_is_sacrebleus_with_each_tokenizer(tokenizer: str) -> None:
    """Chosen in the training or in the evaluation."""
    trained = make_task(Translation, bleu_tokenizer=tokenizer)
    evaluated = make_task(Translation, bleu_tokenizer="13a")
    set_tokenizers(evaluated, tokenizer, None)
    for texts in TEXTS.values():
        outputs = nearly(texts)
        expected = sacrebleu.corpus_bleu(outputs, [texts], tokenize=tokenizer).score
        for task in (trained, evaluated):
            assert scored(task, outputs, texts)["bleu"] == pytest.approx(expected)
            assert f"|tok:{tokenizer}|" in task.signatures["bleu"]
    if tokenizer in ("zh", "char"):
        assert scored(trained, nearly(TEXTS["Chinese"]), TEXTS["Chinese"])["bleu"] > 30


@pytest.mark.parametrize("kind", [TextToText, Chat])
@pytest.mark.parametrize("tokenizer", ["google", "characters", "whitespace"])
def test_rouge_is_googles_of_words_in_letters_that_it_knows(tokenizer: str, kind: type[Task]) -> None:
    """Each word, or character, is written as a word of a to z of its own; then Google's ROUGE knows it."""
    options = {"chat_template": None} if kind is Chat else {}
    task = make_task(kind, rouge_tokenizer="google", **options)
    set_tokenizers(task, None, tokenizer)
    names: dict[str, str] = {}

    def spelled(text: str) -> str:
        if tokenizer == "google":
            return text
        words = text.lower().split() if tokenizer == "whitespace" else [*"".join(text.lower().split())]
        return " ".join(names.setdefault(word, f"w{len(names)}") for word in words)

    for name, texts in TEXTS.items():
        outputs = nearly(texts)
        found = scored(task, outputs, texts)
        for key, theirs in ROUGE.items():
            each = [
                float(rouge_score(spelled(output), spelled(text), rouge_keys=key)[theirs])
                for output, text in zip(outputs, texts, strict=True)
            ]
            assert found[key] == pytest.approx(sum(each) / len(each))
        if tokenizer == "characters" and name == "Chinese":
            assert found["rougeL"] > 0.5
        if tokenizer == "google" and name in NOT_LATIN:
            assert found["rougeL"] == 0
    assert {*task.signatures.values()} == {f"tok:{tokenizer}|case:lc|stem:no"}


@pytest.mark.parametrize(("score", "tokenizer"), NOT_SPLIT)
@pytest.mark.parametrize("language", TEXTS)
def test_what_is_not_split_is_said_once(
    caplog: pytest.LogCaptureFixture, score: str, tokenizer: str, language: str
) -> None:
    kind: type[Task] = Translation if score == "bleu" else TextToText
    task = make_task(kind, **{f"{score}_tokenizer": tokenizer})
    references = TEXTS[language]
    task.warn_of_scripts([Example("abc", target=reference) for reference in references])
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    if language not in NOT_SPLIT[score, tokenizer]:
        assert not said
        return
    (warning,) = said
    assert warning.startswith(f"{score.upper()}: {len(references)} of {len(references)} test references have words in ")
    assert f"task.{score}_tokenizer={tokenizer} does not split" in warning
    choices = ("zh", "char") if score == "bleu" else ("google", "whitespace", "characters")
    fit = [name for name in choices if language not in NOT_SPLIT[score, name]]
    assert re.findall(rf"task\.{score}_tokenizer=(\w+)", warning.partition("little")[2]) == fit


def test_names_in_other_scripts_are_no_reason(caplog: pytest.LogCaptureFixture) -> None:
    task = make_task(TextToText)
    task.warn_of_scripts([Example("a", target="He said Привет" if i == 50 else "He said hello") for i in range(100)])
    assert not caplog.records


def test_word_error_rates_too(caplog: pytest.LogCaptureFixture) -> None:
    from triptych.tasks.word_splitting import warn_of_scripts

    splitters = Transcription.word_splitters.fget(None)  # type: ignore[attr-defined]
    warn_of_scripts(splitters, TEXTS["Russian"])
    assert not caplog.records
    warn_of_scripts(splitters, TEXTS["Chinese"])
    assert "word error rate: 3 of 3 test references have words in CJK" in caplog.text


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        ("ja-mecab", r"needs a package; pip install 'sacrebleu\[ja\]'"),
        ("ko-mecab", r"needs a package; pip install 'sacrebleu\[ko\]'"),
        (
            "flores200",
            r".*flores200sacrebleuspm is not there; download it: python -c '.*BLEU\(tokenize=\"flores200\"\)'",
        ),
        ("spm", r".* is not there; download it: "),
        ("13b", r"expected one of .*; did you mean 13a\?|did you mean 13a\?"),
    ],
)
def test_what_is_absent_is_rejected_in_a_line(monkeypatch: pytest.MonkeyPatch, tokenizer: str, message: str) -> None:
    """Before any data are read, and without a look at the network."""
    monkeypatch.setattr(scores, "MODELS", {name: Path("/nowhere") / path.name for name, path in scores.MODELS.items()})
    settings = OmegaConf.create({"bleu_tokenizer": tokenizer})
    with pytest.raises(ValueError, match=rf"^task\.bleu_tokenizer={tokenizer}: {message}") as refusal:
        Translation.check_architecture("full", settings)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=rf"^bleu_tokenizer={tokenizer}: {message}"):
        set_tokenizers(make_task(Translation, bleu_tokenizer="13a"), tokenizer, None)


def test_scores_that_a_task_has_not_are_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^rouge_tokenizer=characters: translation has no ROUGE"):
        set_tokenizers(make_task(Translation, bleu_tokenizer="13a"), None, "characters")
    with pytest.raises(ConfigError, match=r"^bleu_tokenizer=zh: text_to_text has no BLEU"):
        set_tokenizers(make_task(TextToText), "zh", None)
    with pytest.raises(ConfigError, match=r"^rouge_tokenizer=words: expected one of google, whitespace, characters"):
        set_tokenizers(make_task(TextToText), None, "words")
    with pytest.raises(ValueError, match=r"^task\.rouge_tokenizer=words: "):
        make_task(TextToText, rouge_tokenizer="words")

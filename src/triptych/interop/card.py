"""The model card of an exported run.

Tested by tests/interop/test_clip.py and tests/interop/test_whisper.py.
"""

from collections.abc import Mapping
from typing import Any

from triptych.interop.families.family import ENCODER_CLASSES
from triptych.models.flops import count_parameters
from triptych.nn.network import weights_sha256
from triptych.tasks import Chat, Task

AUTO_CLASSES = {
    **{ending: f"AutoModel{ending}" for ending in (*ENCODER_CLASSES.values(), "ForImageClassification", "ForCausalLM")},
    "WhisperForConditionalGeneration": "AutoModelForSpeechSeq2Seq",
    "ForConditionalGeneration": "AutoModelForSeq2SeqLM",
    "MTModel": "AutoModelForSeq2SeqLM",
    "LMHeadModel": "AutoModelForCausalLM",
    "CLIPModel": "AutoModel",
}
"""The automatic class of ``transformers``, by the ending of the class that it loads."""
WRITING = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModelForCausalLM")
KINDS = {"full": "full (encoder-decoder)", "encoder_only": "encoder-only", "decoder_only": "decoder-only"}
RECORDED = {"data": "data", "seed": "seed", "steps": "steps", "train_tokens": "training tokens"}
HEADER = ("---", "library_name: transformers", "tags:", "- triptych", "---")


def model_card(name: str, task: Task, class_name: str, record: Mapping[str, Any]) -> str:
    """The text of README.md, with the record of the run.

    Args:
        class_name: class of ``transformers`` that loads the folder.
        record: the run's summary.json; empty without one.
    """
    info = {
        "task": task.name.replace("_", " "),
        "architecture": KINDS[task.architecture],
        "parameters": f"{count_parameters(task.network)[0]:,}",
    }
    for key, text in RECORDED.items():
        if key in record:
            info[text] = f"{record[key]:,}" if isinstance(record[key], int) else str(record[key])
    if labels := task.labels:
        info["classes"] = ", ".join(labels)
    lines = [*HEADER, f"# {name}", "", "Trained with Triptych; exported for `transformers`.", "", "| | |", "|---|---|"]
    lines += [*(f"| {key} | {value} |" for key, value in info.items()), ""]
    lines += ["```python", *_usage(name, task, class_name), "```", ""]
    if record.get("weights_sha256") == weights_sha256(task.network):  # not the metrics of another checkpoint
        lines += ["Measured at the end of training:", "", "| metric | value |", "|---|---|"]
        lines += [*(f"| {key} | {value:.4f} |" for key, value in record["metrics"].items()), ""]
    if command := record.get("command"):
        lines += ["Command:", "", f"    {command}", ""]
    if commit := record.get("git_commit"):
        lines += [f"Commit of the code: {commit}", ""]
    return "\n".join(lines)


def _usage(name: str, task: Task, class_name: str) -> list[str]:
    """The code that loads the model and computes its outputs."""
    auto = next(auto for ending, auto in AUTO_CLASSES.items() if class_name.endswith(ending))
    reader = "tokenizer" if task.audio is None and not task.is_dual_encoder else "processor"
    lines = [f"from transformers import {auto}" + (f", Auto{reader.title()}" if task.has_tokens else ""), ""]
    if task.has_tokens:
        lines += [f'{reader} = Auto{reader.title()}.from_pretrained("{name}")']
    answers = auto == "AutoModelForQuestionAnswering"
    asked = '"QUESTION", "TEXT"' if answers else '"..."'
    lines += [f'model = {auto}.from_pretrained("{name}")', *_inputs(task, asked)]
    if auto in WRITING:
        new = "outputs" if task.architecture == "full" else "outputs[:, inputs.input_ids.shape[1] :]"
        lines += ["outputs = model.generate(**inputs)", f"{reader}.batch_decode({new}, skip_special_tokens=True)"]
    elif answers:
        lines += ["outputs = model(**inputs)  # start_logits and end_logits of each token"]
    elif task.is_dual_encoder:
        lines += ["logits = model(**inputs).logits_per_image  # a row for each image, a column for each text"]
    else:
        lines += ["logits = model(**inputs).logits"]
    return lines


def _inputs(task: Task, asked: str) -> list[str]:
    """The code that prepares the inputs of a model."""
    if task.is_dual_encoder:
        return ['inputs = processor(text=["...", "..."], images=..., padding=True, return_tensors="pt")']
    if task.image_shape is not None:
        return ['inputs = {"pixel_values": ...}  # [batch, channels, rows, columns], scaled as in training']
    if task.audio is not None:
        rate = task.audio.embedding.rate
        return [
            f'inputs = processor(..., sampling_rate={rate}, return_tensors="pt")  # samples of one channel, -1 to 1'
        ]
    if not isinstance(task, Chat):
        return [f'inputs = tokenizer({asked}, return_tensors="pt")']
    rest = "" if task.architecture == "full" else ", add_special_tokens=False"
    return [
        f'messages = [{{"role": "user", "content": {asked}}}]',
        "text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)",
        f'inputs = tokenizer(text, return_tensors="pt"{rest})',
    ]

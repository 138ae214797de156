"""Settings and metrics in words, for the table and the page."""


def setting(value: object) -> str:
    """The value of a setting, as typed on the command line."""
    return "null" if value is None else str(value)


COSTS = {"steps": "steps", "train_flops": "FLOPs", "elapsed_s": "seconds of training"}
"""Units of training cost: the column of ``metrics.csv``, and its name in a sentence."""


_STAGES = {"train": "in training", "val": "on the validation set", "test": "on the test set"}
_SPELLED = {"bleu": "BLEU", "chrf": "chrF", "ter": "TER", "f1": "F1"}
_FIELDS = {
    "data_sha256": "data",
    "tokenizer_sha256": "tokenizer",
    "too_long": "texts that are too long",
    "params": "parameters",
    "train_flops": "FLOPs",
    "train_flops_of": "FLOPs",
    "git_commit": "commit",
}


def metric_name(key: str) -> str:
    """A logged metric in words: ``val/exact_match`` is ``exact match on the validation set``."""
    stage, _, name = key.partition("/")
    words = " ".join(_SPELLED.get(word, word) for word in name.split("_"))
    return f"{words} {_STAGES[stage]}" if stage in _STAGES and name else key.replace("_", " ")


def field_name(field: str) -> str:
    """The field of a ``Difference`` in words."""
    return _FIELDS.get(field, field.replace("_", " "))

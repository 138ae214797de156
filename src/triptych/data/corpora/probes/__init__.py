"""Synthetic diagnostic tasks whose answers follow from the input, with configurable difficulty."""

from triptych.data.corpora.probes.bits import Majority, Parity
from triptych.data.corpora.probes.brackets import Brackets
from triptych.data.corpora.probes.list_ops import ListOps
from triptych.data.corpora.probes.probe import Axis, Probe
from triptych.data.corpora.probes.retrieval import Needle, Recall
from triptych.data.corpora.probes.rewriting import Addition, Copy, Reverse, Sort

__all__ = [
    "Addition",
    "Axis",
    "Brackets",
    "Copy",
    "ListOps",
    "Majority",
    "Needle",
    "Parity",
    "Probe",
    "Recall",
    "Reverse",
    "Sort",
]

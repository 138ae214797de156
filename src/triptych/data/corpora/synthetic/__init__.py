"""Synthetic diagnostic tasks whose answers follow from the input, with configurable difficulty."""

from triptych.data.corpora.synthetic.bits import Majority, Parity
from triptych.data.corpora.synthetic.brackets import Brackets
from triptych.data.corpora.synthetic.list_ops import ListOps
from triptych.data.corpora.synthetic.mappings import Mappings
from triptych.data.corpora.synthetic.relations import Relations
from triptych.data.corpora.synthetic.retrieval import Distance, Needle, Recall
from triptych.data.corpora.synthetic.rewriting import Addition, Copy, Reverse, Sort
from triptych.data.corpora.synthetic.sentences import Roles, Senses
from triptych.data.corpora.synthetic.synthetic_corpus import SyntheticCorpus

__all__ = [
    "Addition",
    "Brackets",
    "Copy",
    "Distance",
    "ListOps",
    "Majority",
    "Mappings",
    "Needle",
    "Parity",
    "Recall",
    "Relations",
    "Reverse",
    "Roles",
    "Senses",
    "Sort",
    "SyntheticCorpus",
]

"""What is null of a network is filled in once, and who needs it filled in says so."""

import pytest

from command_line import composed, with_parts
from triptych.assembly.choose_parts import complete_config
from triptych.assembly.make_task import check_network
from triptych.data import CorpusInfo


def test_a_network_without_its_parts_is_an_error() -> None:
    config = composed("experiment=dates/classification")
    with pytest.raises(ValueError, match="parts of the stacks are not chosen"):
        check_network(config)
    with pytest.raises(ValueError, match="parts of the stacks are not chosen"):
        complete_config(config, 9, CorpusInfo())
    check_network(with_parts(config))


def test_tokenizer_and_data_decide_what_is_null() -> None:
    config = with_parts(composed("experiment=dates/classification"))
    complete_config(config, 9, CorpusInfo(labels=("a", "b", "c")))
    assert (config.shape.vocab_size, config.model.head.num_outputs) == (9, 3)
    complete_config(config, 10, CorpusInfo(labels=("a", "b")))  # nothing is null any more
    assert (config.shape.vocab_size, config.model.head.num_outputs) == (9, 3)

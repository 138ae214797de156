"""The logit lens against one written out on Hugging Face's GPT-2, and at both ends of the stack."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from small_models import pad, random_model, randomize
from triptych.inspection import logit_lens, record
from triptych.interop.folders import read_network


@torch.no_grad()
def test_it_is_that_of_gpt_2_written_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = GPT2Config(vocab_size=101, n_embd=32, n_layer=3, n_head=4, n_positions=40)
    theirs = randomize(GPT2LMHeadModel(config)).double()
    theirs.save_pretrained(tmp_path)
    ours, tokens = read_network(tmp_path).network.double().eval(), torch.randint(101, (2, 9))
    with record(ours) as recording:
        ours(tokens)
    states = theirs(tokens, output_hidden_states=True).hidden_states
    expected = [theirs.lm_head(theirs.transformer.ln_f(state)) for state in states[:-1]]
    lens = logit_lens(ours, recording)
    assert_close(lens[:-1], torch.stack(expected))
    assert_close(lens[-1], theirs(tokens).logits)


@pytest.mark.parametrize("pooling", ["first", "mean", "last"])
def test_a_pooled_head_answers_from_each_layer(pooling: str) -> None:
    network, (tokens, mask) = (
        random_model("encoder_only", pool=pooling),
        pad([torch.randint(11, (1, n)) for n in (7, 4)]),
    )
    with record(network) as recording:
        logits = network(tokens, mask)
    assert_close(logit_lens(network, recording, mask)[-1], logits)

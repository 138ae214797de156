"""MarianMT (Junczys-Dowmunt et al. 2018), equal to the original Transformer (Vaswani et al. 2017).

Tested by tests/interop/test_full_families.py.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from triptych.interop.families.bart import GENERATIVE, Bart
from triptych.interop.families.family import HFConfig, Settings


class Marian(Bart):
    """BART with sinusoidal positions and no norm of the embeddings.

    Its table has the sines in the first half of the channels and the cosines in the second; ours interleaves them. The
    channels of all states are therefore in another order, and so are the weights that read and write them.
    """

    model_type = "marian"
    classes = dict.fromkeys(GENERATIVE, "MarianMTModel")

    def settings(self, config: HFConfig, tensors: Mapping[str, Tensor]) -> Settings:
        config.expect("share_encoder_decoder_embeddings", True, [True])
        config.expect("decoder_vocab_size", None, [None, config["vocab_size"]])
        return super().settings(config, tensors) | {
            "block.embed_norm": False,
            "block/position": "sinusoidal",
            "block.position.first": 0,
        }

    def reordered(self, state: Mapping[str, Tensor], config: HFConfig, *, to_ours: bool) -> Mapping[str, Tensor]:
        """See ``Family``: ours[2i] = theirs[i], ours[2i + 1] = theirs[d_model / 2 + i]."""

        def moved(name: str, tensor: Tensor) -> Tensor:
            writes = name.rpartition(".")[0].endswith(("norm", ".o", ".down"))
            if not writes and name.endswith(".bias"):
                return tensor  # queries, keys, values, hidden units and logits
            dim = 0 if writes else -1
            channels = torch.arange(tensor.shape[dim])
            order = channels.view(2, -1).T if to_ours else channels.view(-1, 2).T
            return tensor.index_select(dim, order.flatten())

        return {name: moved(name, tensor) for name, tensor in state.items()}

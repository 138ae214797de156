"""Set-up of all tests: run-time checks of shapes and types, seeds, threads, and small models to test with."""

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor, nn

import shapes

gc.disable()  # until all tests are imported; each search for garbage would look at all of them
shapes.install(["triptych.nn", "triptych.models", "triptych.models.generation"])

from browser import Browser  # noqa: E402
from command_line import command_lines  # noqa: E402
from parts import make_stack  # noqa: E402
from triptych.models import DecoderOnly, EncoderDecoder, EncoderOnly, PrefixLM  # noqa: E402
from triptych.nn import Embedding, Head, Stack  # noqa: E402

pytest_plugins = ["faults_table", "clock", "durations"]

Model = EncoderOnly | DecoderOnly | EncoderDecoder

torch.set_num_threads(1)  # the tests themselves run in parallel
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as at a terminal, wherever the tests were started


class TorchRandom:
    """PyTorch's generator for hypothesis, which seeds it before each example."""

    def seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def getstate(self) -> Tensor:
        return torch.get_rng_state()

    def setstate(self, state: Tensor) -> None:
        torch.set_rng_state(state)


torch_random = TorchRandom()  # hypothesis keeps a weak reference only
hypothesis.register_random(torch_random)
hypothesis.settings.register_profile("small", deadline=None, max_examples=10, derandomize=True)
hypothesis.settings.load_profile("small")


@pytest.fixture(autouse=True, scope="session")
def _commands(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What processes that the tests start shall have in their environment."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # shared by all workers
    os.environ["TRIPTYCH_CACHE"] = str(folder / "cache")
    os.environ["PRELOADED"] = str(folder / "preloaded")
    path = [str(Path(__file__).with_name("quick_start")), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A window, the same for all tests of a process; ``needs_browser`` marks them."""
    with Browser(tmp_path_factory.mktemp("browser")) as window:
        yield window


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
    shapes.calls.clear()


def _randomize(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return module.eval()


@pytest.fixture(scope="session")
def randomize() -> Callable[..., Any]:
    """Adds noise to every parameter (the zeros and ones of a fresh module would hide mistakes), and ``eval()``."""
    return _randomize


def _build(
    architecture: str,
    *,
    vocab_size: int = 11,
    d_model: int = 16,
    num_layers: int = 2,
    max_length: int = 24,
    position: str = "sinusoidal",
    pool: str = "none",
    num_outputs: int | None = None,
    tie_word_embeddings: bool = False,
    head_options: dict[str, Any] | None = None,
    **block: Any,
) -> Model:
    def stack(*, causal: bool, cross_attention: bool = False) -> Stack:
        options = {"num_heads": 4, "d_ff": 24} | block
        return make_stack(
            num_layers=num_layers, d_model=d_model, causal=causal, cross_attention=cross_attention, position=position,
            max_length=max_length, **options,
        )  # fmt: skip

    embedding = Embedding(vocab_size=vocab_size, d_model=d_model)
    head = Head(d_model=d_model, num_outputs=num_outputs or vocab_size, pooling=pool, **(head_options or {}))
    if architecture == "encoder_only":
        return EncoderOnly(
            embedding=embedding, encoder=stack(causal=False), head=head, tie_word_embeddings=tie_word_embeddings
        )
    if architecture in ("decoder_only", "prefix_lm"):
        network = DecoderOnly if architecture == "decoder_only" else PrefixLM
        decoder = stack(causal=network.is_causal)
        return network(embedding=embedding, decoder=decoder, head=head, tie_word_embeddings=tie_word_embeddings)
    return EncoderDecoder(
        embedding=embedding, encoder=stack(causal=False), decoder=stack(causal=True, cross_attention=True), head=head,
        tie_word_embeddings=tie_word_embeddings,
    )  # fmt: skip


@pytest.fixture(scope="session")
def build() -> Callable[..., Any]:
    """Builds a small model; every argument has a default but the architecture."""
    return _build


@pytest.fixture(scope="session")
def random_model() -> Callable[..., Any]:
    """``build`` and ``randomize``, in float64: two ways to the same result may then be compared closely."""
    return lambda architecture, **options: _randomize(_build(architecture, **options)).double()


def _pad(rows: list[Tensor], *, left: bool = False) -> tuple[Tensor, Tensor]:
    longest = max(row.shape[1] for row in rows)
    tokens, mask = torch.randint(11, (len(rows), longest)), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(longest - row.shape[1], None) if left else slice(row.shape[1])
        tokens[i, place], mask[i, place] = row[0], True
    return tokens, mask


@pytest.fixture(scope="session")
def pad() -> Callable[..., tuple[Tensor, Tensor]]:
    """Makes one batch of sequences, padded with random tokens, and a mask that is True at the real ones."""
    return _pad


@pytest.fixture
def chosen() -> Iterator[Callable[..., DictConfig]]:
    """What Hydra makes of a command line of ``train``, in the place where the program asks it what was given."""
    with command_lines() as choose:
        yield choose


def pytest_collection_finish() -> None:
    """What is imported stays: searches for garbage leave it out, and take a tenth of the time."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In CI a skipped test is a failure: everything that the tests need is installed there."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("TRIPTYCH_CI") and reporter is not None and reporter.stats.get("skipped"):
        reporter.write_line("skipped tests are not accepted in CI", red=True)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

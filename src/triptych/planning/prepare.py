"""The preparation of a training, which train and the doctor share: what was chosen becomes a plan, step by step, and
nothing changes the plan any more."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from omegaconf import DictConfig, OmegaConf

from triptych.assembly.checks import check_optimizer
from triptych.assembly.choose_parts import choose_parts
from triptych.assembly.early_checks import check_validation
from triptych.assembly.init_from import Pretrained, settings_to_adopt
from triptych.assembly.monitors import choose_modes
from triptych.assembly.network import check_network
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import refusing
from triptych.config.overrides import adopt, base_of
from triptych.config.run_settings import RunSettings
from triptych.data import Corpus
from triptych.data.overlap import Overlap, describe_overlap, read_overlap
from triptych.planning.batch_shapes import Data, ReadData
from triptych.planning.matching import (
    Match,
    Measure,
    Reference,
    check_countable,
    check_same,
    find_match,
    recorded,
    reference_of,
)
from triptych.planning.pace import measure_paces
from triptych.storage.redaction import Redactor
from triptych.training.resume import Earlier, state_to_resume

log = logging.getLogger("triptych")


@dataclass(frozen=True, slots=True)
class Chosen:
    """What was chosen, before the data are read.

    Attributes:
        config: of the training; what the data decide is still null.
        plain: the same as a run directory holds it: plain containers without secrets.
        redact: takes the secrets out of anything else.
        pretrained: the checkpoint of ``init_from``, where it was read.
        match: what was solved when the run began.
    """

    config: DictConfig
    plain: dict[str, Any]
    redact: Redactor
    pretrained: Pretrained | None
    match: Match | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A training of which everything is decided and nothing is built.

    Attributes:
        settings: its complete configuration.
        model: the choice of ``model=`` whose class the network is of.
        redact: takes the secrets out of anything.
        corpus: where the examples are from.
        data: the examples, and the tokenizer.
        match: what was solved.
        overlap: what of validation and test is in the training split, too; None: long texts.
        origin: the checkpoint that the run resumes from, or that initializes its stacks; None: new weights.
    """

    settings: RunSettings
    model: str
    redact: Redactor
    corpus: Corpus
    data: ReadData
    match: Match | None
    overlap: Overlap | None
    origin: Earlier | Pretrained | None
    _plain: dict[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        """The configuration as a run directory holds it: plain containers without secrets, a copy each time."""
        return copy.deepcopy(self._plain)

    @property
    def earlier(self) -> Earlier | None:
        """The checkpoint that the run resumes from."""
        return self.origin if isinstance(self.origin, Earlier) else None

    @property
    def resumed(self) -> Path | None:
        """The file of that checkpoint."""
        return None if self.earlier is None else self.earlier.path


def adopt_settings(config: DictConfig) -> Pretrained | None:
    """Puts the settings of the network that ``init_from`` names into the configuration.

    Args:
        config: composed by Hydra.

    Returns:
        The checkpoint, where it was read.
    """
    if config.init_from is None:
        return None
    settings, pretrained = settings_to_adopt(config)
    adopt(config, settings)
    return pretrained


def choose(config: DictConfig, pretrained: Pretrained | None) -> Chosen:
    """What was chosen, with the parts of the network in full, the modes of monitored metrics and what was matched when
    the run began.

    Args:
        config: with the settings of ``init_from``; what was chosen for it is put into it.
        pretrained: see ``adopt_settings``.
    """
    choose_parts(config)
    choose_modes(config)
    match = recorded(config)
    if match is not None:
        match.apply(config)
    whole = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    whole.pop("device", None)  # no training has it
    redact = Redactor(whole)
    return Chosen(config, cast(dict[str, Any], redact(whole)), redact, pretrained, match)


def find_reference(chosen: Chosen, overrides: Sequence[str], world_size: int) -> Reference | None:
    """What is to be matched, as far as it is known before the data are read; None: nothing, or it was matched when the
    run began."""
    reference = None if chosen.match is not None else reference_of(chosen.config, overrides)
    if reference is not None:
        check_countable(chosen.config, world_size)
    return reference


def find_earlier(chosen: Chosen) -> Earlier | None:
    """The checkpoint that the run resumes from; None: it starts from step 0."""
    earlier = state_to_resume(chosen.config, chosen.plain)
    if earlier is not None:
        earlier.warn_of_place(chosen.plain)
    return earlier


def find_origin(chosen: Chosen) -> Earlier | Pretrained | None:
    """The checkpoint that the run resumes from, or else the one that initializes its stacks."""
    if (earlier := find_earlier(chosen)) is not None:
        return earlier
    if chosen.config.init_from is None:
        return None
    pretrained = chosen.pretrained or Pretrained(chosen.config.init_from, chosen.config.init_cross_attention)
    pretrained.check(check_network(chosen.config))
    return pretrained


def make_plan(
    chosen: Chosen, reference: Reference | None, data_name: str, environment: ClusterEnvironment, world_size: int
) -> Plan:
    """Reads the data and decides what is still open: the match, the vocabulary, the outputs.

    Args:
        data_name: what the corpus is called.
        environment: of this process, for ``match=wall_time``.
    """
    origin = find_origin(chosen)
    config = chosen.config.copy()
    with refusing():
        corpus, splits, facts = read_corpus(config, data_name)
        if isinstance(origin, Earlier):
            origin.check_data(facts)
        overlap = read_overlap(splits, facts.sha256)
        if overlap is not None and not getattr(corpus, "is_made", False) and (said := describe_overlap(overlap)):
            log.warning("%s", said)
        tokenizer = train_tokenizer(config, splits) if origin is None else origin.tokenizer
        data = ReadData(splits, facts, tokenizer, world_size)
        match = chosen.match
        if reference is not None:
            log.info("match=%s: %s", config.match, "timing updates" if config.match == "wall_time" else "counting")
            match = solve(config, reference, data, partial(measure_paces, data, environment))
        if match is not None:
            match.apply(config)
            log.info("%s", match)
            if "trainer.max_steps" in match.chosen:
                check_optimizer(config)
                check_validation(config)
        config = data.complete(config)
    plain = cast(dict[str, Any], chosen.redact(OmegaConf.to_container(config, resolve=True)))
    return Plan(RunSettings.of(config), base_of(config), chosen.redact, corpus, data, match, overlap, origin, plain)


def solve(config: DictConfig, reference: Reference, data: Data, measure: Measure | None) -> Match:
    """What ``match`` asks for.

    Args:
        measure: the paces of trainings, for ``match=wall_time``.

    Raises:
        ConfigError: it cannot be matched.
    """
    if isinstance(data, ReadData):
        check_same(reference, config.match, data=data.facts.sha256, tokenizer=data.tokenizer.sha256)
    return find_match(config, reference, data, measure)

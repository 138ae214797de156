"""Prepares a run, for train and the doctor: turns the configuration into a plan, which does not change afterwards."""
# Takes a DictConfig: before the plan, overrides, checkpoints and matches may still set any key.

import copy
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from lightning.fabric.plugins.environments.cluster_environment import ClusterEnvironment
from omegaconf import DictConfig

from triptych.assembly.checks import check_optimizer
from triptych.assembly.choose_parts import choose_parts
from triptych.assembly.early_checks import check_validation
from triptych.assembly.init_from import InitialWeights, settings_to_adopt
from triptych.assembly.make_task import check_network
from triptych.assembly.monitors import choose_modes
from triptych.assembly.read_data import read_corpus, train_tokenizer
from triptych.config import ConfigError, as_dict, error_prefix
from triptych.config.overrides import adopt, base_of
from triptych.config.run_settings import RunSettings
from triptych.data import Corpus
from triptych.data.overlap import Overlap, describe_overlap, read_overlap
from triptych.planning.batch_shapes import ReadData
from triptych.planning.matching import BudgetMatch, Reference, recorded_match, reference_of, solve
from triptych.planning.pace import measure_paces
from triptych.storage.redaction import Redactor
from triptych.training.resume import ResumePoint, state_to_resume

log = logging.getLogger("triptych")


@dataclass(frozen=True, slots=True)
class ResolvedConfig:
    """The configuration before data are read.

    Attributes:
        config: configuration; settings that depend on the data are still null.
        plain: the same in plain containers without secrets, as in config.yaml.
        redact: removes the secrets from other objects.
        pretrained: the checkpoint of ``init_from``, if it was read.
        match: the match of an earlier start of this run.
    """

    config: DictConfig
    plain: dict[str, Any]
    redact: Redactor
    pretrained: InitialWeights | None
    match: BudgetMatch | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A run with all settings decided, before anything is built.

    Attributes:
        settings: complete configuration.
        model: choice of ``model=`` with the class of the network.
        redact: removes the secrets from an object.
        corpus: corpus of the examples.
        data: examples and tokenizer.
        match: solved match.
        overlap: examples of validation and test that also occur in the training split; None: long texts.
        origin: the checkpoint that the run resumes from, or that initializes its stacks; None: random weights.
    """

    settings: RunSettings
    model: str
    redact: Redactor
    corpus: Corpus
    data: ReadData
    match: BudgetMatch | None
    overlap: Overlap | None
    origin: ResumePoint | InitialWeights | None
    _plain: dict[str, Any]

    @property
    def plain(self) -> dict[str, Any]:
        """A copy of the configuration in plain containers without secrets, as in config.yaml."""
        return copy.deepcopy(self._plain)

    @property
    def earlier(self) -> ResumePoint | None:
        """The checkpoint that the run resumes from."""
        return self.origin if isinstance(self.origin, ResumePoint) else None


def adopt_settings(config: DictConfig) -> InitialWeights | None:
    """Copies the network settings of ``init_from`` into the configuration; returns the checkpoint if it was read."""
    if config.init_from is None:
        return None
    settings, pretrained = settings_to_adopt(config)
    adopt(config, settings)
    return pretrained


def choose(config: DictConfig, pretrained: InitialWeights | None) -> ResolvedConfig:
    """Completes the configuration with the parts of the network, the modes of monitored metrics and an earlier match.

    Args:
        config: configuration with the settings of ``init_from``; changed in place.
        pretrained: see ``adopt_settings``.
    """
    choose_parts(config)
    choose_modes(config)
    match = recorded_match(config)
    if match is not None:
        match.apply(config)
    whole = as_dict(config)
    whole.pop("device", None)  # only for the doctor
    redact = Redactor(whole)
    return ResolvedConfig(config, cast(dict[str, Any], redact(whole)), redact, pretrained, match)


def find_reference(chosen: ResolvedConfig, overrides: Sequence[str], world_size: int) -> Reference | None:
    """The reference, as far as it is known before data are read; None: no match, or already solved by an earlier
    start."""
    reference = None if chosen.match is not None else reference_of(chosen.config, overrides)
    if reference is not None and chosen.config.match == "wall_time" and world_size > 1:
        raise ConfigError(
            f"match=wall_time supports one process, and trainer.devices={chosen.config.trainer.devices} starts "
            f"{world_size}; expected one device, or match=train_flops"
        )
    return reference


def find_earlier(chosen: ResolvedConfig) -> ResumePoint | None:
    """The checkpoint that the run resumes from; None: it starts from step 0."""
    earlier = state_to_resume(chosen.config, chosen.plain)
    if earlier is not None:
        earlier.warn_of_place(chosen.plain)
    return earlier


def find_origin(chosen: ResolvedConfig) -> ResumePoint | InitialWeights | None:
    """The checkpoint that the run resumes from, or else the one that initializes its stacks."""
    if (earlier := find_earlier(chosen)) is not None:
        return earlier
    if chosen.config.init_from is None:
        return None
    pretrained = chosen.pretrained or InitialWeights(chosen.config.init_from, chosen.config.init_cross_attention)
    pretrained.check(check_network(chosen.config))
    return pretrained


def make_plan(
    chosen: ResolvedConfig,
    reference: Reference | None,
    data_name: str,
    environment: ClusterEnvironment,
    world_size: int,
) -> Plan:
    """Reads the data and completes the configuration: the match, the vocabulary and the outputs.

    Args:
        data_name: displayed name of the corpus.
        environment: cluster environment, for ``match=wall_time``.
    """
    origin = find_origin(chosen)
    config = chosen.config.copy()
    with error_prefix():
        corpus, splits, info = read_corpus(config, data_name)
        if isinstance(origin, ResumePoint):
            origin.check_data(info)
        overlap = read_overlap(splits, info.sha256)
        if overlap is not None and not getattr(corpus, "is_made", False) and (said := describe_overlap(overlap)):
            log.warning("%s", said)
        tokenizer = train_tokenizer(config, splits) if origin is None else origin.tokenizer
        data = ReadData(splits, info, tokenizer, world_size)
        match = chosen.match
        if reference is not None:
            log.info("match=%s: %s", config.match, "timing steps" if config.match == "wall_time" else "counting")
            match = solve(config, reference, data, partial(measure_paces, data, environment))
        if match is not None:
            match.apply(config)
            log.info("%s", match)
            if "trainer.max_steps" in match.solved:
                check_optimizer(config)
                check_validation(config)
        config = data.complete(config)
    plain = cast(dict[str, Any], chosen.redact(as_dict(config)))
    return Plan(RunSettings.of(config), base_of(config), chosen.redact, corpus, data, match, overlap, origin, plain)

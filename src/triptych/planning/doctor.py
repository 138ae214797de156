"""``triptych doctor``: the plan of a run and the errors that would stop it, without training."""
# Takes a DictConfig: it checks keys and classes that any file may name.

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from omegaconf import DictConfig

from triptych.assembly.checks import CHECKS, check_accelerator
from triptych.config import ConfigError, build, counted, target_of
from triptych.launch.command import this_command
from triptych.launch.environment import count_devices
from triptych.launch.processes import detect_rank, silence
from triptych.launch.sweep import Job
from triptych.planning.batch_shapes import BatchEstimate, Data, inspect_data
from triptych.planning.check_results import (
    CheckResults,
    check_allocation,
    check_devices,
    check_disk,
    check_memory,
    check_own_parts,
    check_precision,
    check_run_dir,
    check_wandb,
)
from triptych.planning.forecast import make_forecast
from triptych.planning.gpus import device_here, gpu_named
from triptych.planning.matching import BudgetMatch, Reference, solve
from triptych.planning.plan_tables import show_findings, show_forecast
from triptych.planning.prepare import ResolvedConfig, adopt_settings, choose, find_earlier, find_reference
from triptych.planning.script import batch_script, composed, job_of
from triptych.training import FSDP
from triptych.training.resume import ResumePoint, is_finished

HARMLESS = {"accelerator", "validation", "files"}
"""Checks that may fail without preventing a plan."""


def doctor(config: DictConfig, sweep: Sequence[Sequence[str]] = ()) -> None:
    """Prints the forecast of a run and all errors and warnings. Trains and submits nothing.

    Args:
        config: composed by Hydra from conf/doctor.yaml.
        sweep: overrides of each job of a sweep; the first unfinished job is checked.
    """
    command, place = this_command(), detect_rank()
    if place.rank:
        silence()
        return
    findings = CheckResults()
    jobs = findings.look("sweep", lambda: [job_of(overrides) for overrides in sweep], progress) or []
    if jobs:
        number = first_to_do(jobs)
        config = composed(sweep[number])
        config.run_dir = str(jobs[number].directory)
    device = device_here(config.trainer.accelerator) if config.device is None else gpu_named(config.device)
    on_cluster = command.launcher == "slurm"
    spans_nodes = place.starter is None and config.trainer.num_nodes > 1
    elsewhere = config.device is not None or on_cluster or spans_nodes
    script = None
    pretrained = findings.look("init_from", lambda: adopt_settings(config), lambda _: config.init_from)
    chosen = choose(config, pretrained)
    count = findings.look("devices", lambda: processes_of(config), lambda _: None) or 1
    for name, check in CHECKS.items():
        is_of_machine = elsewhere and check is check_accelerator
        findings.look(name, partial(check, config), lambda _: "", worst="warning" if is_of_machine else "error")
    findings.look("devices", lambda: check_devices(config, place, count, elsewhere=elsewhere))
    overrides = sweep[number] if jobs else command.overrides
    was_matched = None if chosen.match is None else str(chosen.match)
    reference = findings.look("match", lambda: find_reference(chosen, overrides, count), lambda _: was_matched)
    findings.look("files", lambda: build(config, "data"), lambda _: None)
    if not findings.errors:
        named = "checked on random input: {}".format
        findings.look("parts", lambda: check_own_parts(config), lambda own: named(", ".join(own)) if own else None)
    can_be_planned = {error.name for error in findings.errors} <= HARMLESS
    if on_cluster:
        said = "one array; its script is shown below"
        script = findings.look("SLURM", lambda: batch_script(config, jobs), lambda text: said if text else "no jobs")
    if "SLURM_JOB_ID" in os.environ and not elsewhere:
        findings.look("allocation", lambda: check_allocation(config, count))
    findings.look("run_dir", lambda: check_run_dir(Path(config.run_dir)))
    found = findings.look("resume", lambda: resumption(chosen), lambda found: found[0])
    findings.look("W&B", lambda: check_wandb(config))
    forecast = None
    if can_be_planned:
        known = (found and found[1]) or chosen.pretrained
        tokenizer = known.tokenizer if known else None
        data = findings.look("data", lambda: inspect_data(config, tokenizer, count), lambda _: None)
        if data is not None and reference is not None:
            findings.look("match", lambda: matched(config, reference, data))
        estimate = None if data is None else findings.look("data", lambda: data.estimate(config), describe_data)
        if estimate is not None:
            forecast = findings.look("plan", lambda: make_forecast(estimate, count, device), lambda _: None)
    if forecast is not None:
        findings.look("precision", lambda: check_precision(config, device))
        findings.look("memory", lambda: check_memory(forecast, device, sharded=is_sharded(config)))
        findings.look("disk", lambda: check_disk(config, forecast), worst="warning" if elsewhere else "error")
        show_forecast(forecast, device, is_here=config.device is None, sharded=is_sharded(config))
    show_findings(findings, chosen.redact)
    if script:
        print(chosen.redact(script))
    if findings.errors:
        raise ConfigError(f"{counted(len(findings.errors), 'error')}: this run would fail")


def matched(config: DictConfig, reference: Reference, data: Data) -> BudgetMatch | str:
    """Solves the match and applies it to the configuration, except for wall_time, which a run measures."""
    if config.match == "wall_time":
        return "match=wall_time is measured when the run starts; the plan uses the configured trainer.max_steps"
    found = solve(config, reference, data, None)
    found.apply(config)
    return found


def describe_data(estimate: BatchEstimate) -> str:
    """Describes the data."""
    if estimate.sample is not None:
        return (
            f"about {estimate.tokens:,.0f} tokens per step, at most {max(estimate.longest)} per row, from "
            f"{counted(len(estimate.steps), 'step')} of {counted(estimate.sample, 'example')}"
        )
    if not estimate.assumptions:
        return f"{estimate.tokens:,.0f} tokens per step, at most {estimate.longest[0]} per row"
    return "not read; the plan assumes " + ", and ".join(estimate.assumptions)


def first_to_do(jobs: Sequence[Job]) -> int:
    """The index of the first unfinished job; 0 if all are finished."""
    return next((i for i, job in enumerate(jobs) if not job.is_done), 0)


def progress(jobs: Sequence[Job]) -> str | None:
    """The progress of a sweep, and the job that is checked; None: not a sweep."""
    if not jobs:
        return None
    done = sum(job.is_done for job in jobs)
    return f"{done} of {len(jobs)} done; this plan is for {' '.join(jobs[first_to_do(jobs)].overrides)}"


def processes_of(config: DictConfig) -> int:
    """``trainer.devices`` times ``trainer.num_nodes``; auto means all devices of this computer."""
    devices, nodes = config.trainer.devices, config.trainer.num_nodes
    there = 1 if config.trainer.accelerator == "cpu" else max(torch.cuda.device_count(), 1)
    each = count_devices(devices, there)
    if each < 1 or not isinstance(nodes, int) or nodes < 1:
        raise ConfigError(f"trainer.devices={devices}, trainer.num_nodes={nodes}: expected at least 1 of each")
    return each * nodes


def is_sharded(config: DictConfig) -> bool:
    """Whether FSDP shards the weights."""
    return not isinstance(config.trainer.strategy, str) and issubclass(target_of(config, "trainer.strategy"), FSDP)


def resumption(chosen: ResolvedConfig) -> tuple[str, ResumePoint | None]:
    """Describes what train would do with the contents of run_dir, and the checkpoint that it would resume from."""
    if is_finished(chosen.config, chosen.plain):
        return "already finished: train would do nothing", None
    earlier = find_earlier(chosen)
    if earlier is None:
        return "starts at step 1", None
    if earlier.early_stop is not None:
        return earlier.early_stop, earlier
    max_steps = chosen.config.trainer.max_steps
    return f"resumes after step {earlier.step:,} of {max_steps:,}, from {earlier.path}", earlier

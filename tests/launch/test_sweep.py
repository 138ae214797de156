"""Names of run directories and of records."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hydra import compose
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from triptych.config import target_of
from triptych.config.overrides import quote, write_override
from triptych.launch.sweep import (
    PRUNING,
    Job,
    common_name,
    describe_shared,
    digest_of,
    end_sweep,
    experiment_of,
    job_directory,
    name_jobs,
)
from triptych.storage.redaction import Redactor

TRANSLATION = "experiment=dates/translation"


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        ([TRANSLATION], "dates/translation_full"),
        ([TRANSLATION, "shape.d_model=64", "seed=2"], "dates/translation_full"),
        ([TRANSLATION, "model=full", "match=params", "reference=full"], "dates/translation_full"),
        ([TRANSLATION, "model=decoder_only", "match=params", "reference=full"], "dates/translation_decoder_only"),
        ([TRANSLATION, "task=tagging"], "dates/tagging_full"),
        ([TRANSLATION, "data=date_pairs", "task=similarity"], "date_pairs/similarity_full"),
        (["experiment=dates/classification"], "dates/classification_encoder_only"),
        (["experiment=dates/pairs", "model=full"], "dates/pairs_full"),
        (["experiment=dates/denoising", "model=bert/style"], "dates/denoising_bert-style"),
        (["experiment=imdb/pretraining", "run_dir=sweep"], "imdb/pretraining_encoder_only"),
        (["experiment=sst2/encoder_only", "model=encoder_only"], "sst2/encoder_only"),
        (["experiment=sst2/encoder_only", "model=full"], "sst2/classification_full"),
        (["task=tagging", "model=bert/style"], "dates/tagging_bert-style"),
    ],
)
def test_a_run_has_the_name_of_what_it_is(overrides: list[str], name: str, chosen: Callable[..., DictConfig]) -> None:
    architecture = target_of(chosen(*overrides), "model").architecture
    assert experiment_of(HydraConfig.get()) == name  # that of the record
    assert name.endswith((architecture, "style"))
    own = [*overrides, "run_dir=sweep"]
    directory = job_directory(compose("train", overrides=own, return_hydra_config=True), own)
    assert directory.parent.name == "sweep"
    assert directory.name.rpartition("-")[0] == name.replace("/", ".")


def test_two_spellings_of_a_number_are_one_job(chosen: Callable[..., DictConfig]) -> None:
    rotary = [TRANSLATION, "block/position=rotary", "run_dir=sweep"]
    same = {
        digest_of(chosen(*rotary, *own)) for own in ([], *([f"block.position.theta={x}"] for x in ("10000", "1e4")))
    }
    assert len(same) == 1
    assert digest_of(chosen(*rotary, "block.position.theta=1e5")) not in same


@pytest.mark.parametrize(
    ("overrides", "given", "names", "shared"),
    [
        (["a=1 s=1", "a=1 s=2"], "a=1 s=1,2", ["s=1", "s=2"], "2 jobs, all with a=1"),
        (["s=1", "s=2"], "s=1,2", ["s=1", "s=2"], ""),
        (["a=1 b=2"], "a=1 b=2", ["a=1 b=2"], ""),
        (["a=1 s=1", "a=1 s=1"], "a=1 s=1,1", ["a=1 s=1", "a=1 s=1"], "2 jobs, all with a=1 s=1"),
        ([f"a=1 x=3 {PRUNING}{{}}"], "a=1 x=interval(0,9)", ["x=3"], ""),
        ([f"a=1 x={x} {PRUNING}{{}}" for x in (3, 4)], "a=1 x=interval(0,9)", ["x=3", "x=4"], ""),
    ],
)
def test_a_job_is_named_by_what_differs(overrides: list[str], given: str, names: list[str], shared: str) -> None:
    own = [text.split() for text in overrides]
    sweep = OmegaConf.create({"hydra": {"overrides": {"task": given.split()}}})
    jobs = [Job(o, Path("run"), sweep, name) for o, name in zip(own, name_jobs(own, sweep), strict=True)]
    assert [job.title for job in jobs] == names
    assert describe_shared(jobs) == shared


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (["dates/translation_full"], "dates/translation_full"),
        (["dates/translation_full", "dates/translation_decoder_only"], "dates/translation"),
        (["dates/translation_full", "dates/tagging_full"], "dates"),
        (["dates/tagging_bert-base", "dates/tagging_bert-style"], "dates/tagging"),
        (["sst2/full", "imdb/full"], "search"),
    ],
)
def test_a_search_over_models_is_named_by_what_they_share(names: list[str], name: str) -> None:
    assert common_name(names) == name


MARKS = st.sampled_from("\\'\"${}()[],:=#% \t\nü~")
TEXT = st.text(MARKS | st.characters(exclude_characters="\0", exclude_categories=["Cs"])).filter("???".__ne__)


def read_as_job(*arguments: str) -> DictConfig:
    """What a job reads, by Hydra's parser and OmegaConf alone."""
    parsed = OverridesParser.create().parse_overrides(list(arguments))
    return OmegaConf.create({override.key_or_group: override.value() for override in parsed})


@settings(max_examples=50)
@given(TEXT, TEXT)
@example("ü = , ( # '", '"')
@example("null", "1e5")
@example("a ", "${x}")
def test_a_job_reads_the_texts_of_its_sweep(value: str, folder: str) -> None:
    directory = Path(folder.replace("/", "") or "a", "run")
    given = OverridesParser.create().parse_overrides([write_override("x", value), f"y=[{quote(value)}]"])
    ((own,),) = BasicSweeper.split_arguments(given, None)
    config = read_as_job(*Job(own, directory, OmegaConf.create()).arguments)
    assert OmegaConf.to_container(config, resolve=True) == {"x": value, "y": [value], "run_dir": str(directory)}


@pytest.mark.parametrize("folder", ["outputs/seeds", "/data/runs-2", "../x_1.y"])
def test_a_plain_folder_is_not_quoted(folder: str) -> None:
    assert write_override("run_dir", folder) == f"run_dir={folder}"


def test_a_sweep_ends_with_the_command_that_compares_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Trials of a search are not tested, so there is nothing to compare."""
    own = [[f"seed={seed}"] for seed in (1, 2)]
    end_sweep([Job(one, Path("my sweep") / one[0], OmegaConf.create()) for one in own], {}, Redactor())
    assert capsys.readouterr().out == "next: triptych compare 'my sweep'\n"
    trials = [Job([*one, "++callbacks.pruning=x"], Path("search") / one[0], OmegaConf.create()) for one in own]
    end_sweep(trials, {}, Redactor())
    assert capsys.readouterr().out == ""

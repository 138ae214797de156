"""Every experiment composes, and its network is built on the meta device; the groups and keys that scripts rely on."""

import re
import shlex
from abc import ABCMeta
from pathlib import Path

import pytest
import torch
from omegaconf import DictConfig, OmegaConf

import triptych.data.corpora.synthetic
from cases import by_day, every_third_by_day, values_by_day
from command_line import composed, with_parts
from parts import POSITIONS
from triptych.assembly.choose_parts import choose_parts
from triptych.assembly.compatibility import check_grid
from triptych.assembly.make_task import check_network
from triptych.assembly.monitors import choose_modes
from triptych.cli import runs
from triptych.config import ARCHITECTURES, ConfigError, build, check, target_of
from triptych.storage.downloads import SETS

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"
EXPERIMENTS = sorted(
    p.relative_to(CONF / "experiment").with_suffix("").as_posix() for p in (CONF / "experiment").rglob("*.yaml")
)

WRITING = (
    "dates/chat",
    "dates/translation",
    "dates/language_modeling",
    *(f"synthetic/{x}" for x in ("copy", "reverse", "sort", "addition")),
)
REFUSED = {
    *(("prefix_lm", experiment) for experiment in EXPERIMENTS if experiment not in (*WRITING, "dates/denoising")),
}


STACKS = ("full", "encoder_only", "decoder_only")
POSITION_NAMES = ("none", "learned", "sinusoidal", "rotary", "relative_bias", "alibi")
QUESTIONS = [name for name in EXPERIMENTS if name.startswith(("dates/", "synthetic/"))]
FAST = OmegaConf.load(CONF / "debug" / "fast.yaml")


def options(group: str) -> set[str]:
    return {file.stem for file in (CONF / group).glob("*.yaml")}


def commands_of(experiment: str) -> tuple[str, list[str]]:
    """The command in the header of an experiment; others: with the overrides that it names after "also", and the one
    that comes before it."""
    comment = re.match(r"(#.*\n)+", (CONF / "experiment" / f"{experiment}.yaml").read_text(encoding="utf-8"))
    assert comment is not None
    text = re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).replace("\\\n", " ")
    text = text.partition("Command: ")[2].partition("\nExpected: ")[0]
    command, _, rest = text.partition("\n")
    assert not {*text.split(), *rest.split()} & {"[", "]"}
    also = re.search(r"also ([^()]+)\)", rest)
    assert ("also" in rest) == (also is not None), experiment
    others = [f"{command} {more}" for more in (" ".join(also[1].split()).split(" or ") if also else ())]
    assert {*re.findall(r"triptych download (\w+)", rest)} <= {*SETS}, experiment
    return command, [*others, *re.findall(r"after (triptych train [\w=/]+)", rest)]


def shown() -> list[str]:
    """The commands of Hydra in the documentation and in --help, but for those with "..." or a variable in it."""
    found = []
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
    for page in [*pages, *sorted(CONF.glob("hydra/help/*.yaml")), ROOT / "src/triptych/cli/commands.py"]:
        text = re.sub(r"\\\n *", " ", page.read_text(encoding="utf-8"))
        for line in re.findall(r"^  +(?:.* \| )?(triptych (?:train|doctor|evaluate|predict) .*)$", text, re.MULTILINE):
            command = re.split(r" {4,}", line)[0]
            if not re.search(r"\.\.\.|\$|--config-dir|key=value|=NAME|--cfg", command):
                found.append(shlex.join(shlex.split(command, comments=True)))
    return [*dict.fromkeys(found)]


def compose_line(line: str) -> None:
    """Composes a command, or the first job of a sweep; a search begins with the lowest value of each interval."""
    program, command, *arguments = shlex.split(line)
    assert program == "triptych"
    runs.check_arguments(arguments, command)
    words = [word for word in arguments if word != "-m"]
    if command == "evaluate":
        words = [f"++{word}" if word.startswith("data.") else word for word in words]
    if len(words) < len(arguments):
        words = [re.sub(r"=(?:tag\(\w+,)?(?:interval|choice)\(([^,)]+).*", r"=\1", word) for word in words]
        words, _ = runs.first_job(words)
    composed(*words, command=command)


@pytest.mark.parametrize("experiment", by_day(EXPERIMENTS, EXPERIMENTS[::3]))
def test_experiment(experiment: str) -> None:
    config = composed(f"experiment={experiment}")
    check_builds(config)
    assert OmegaConf.merge(config, FAST).trainer.max_steps <= 10  # all its keys are there


def expected_of(experiment: str) -> str:
    """What the header of an experiment says is expected."""
    lines = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    return " ".join([line for line in lines if line[0:1] == "#"][-4:])


@pytest.mark.parametrize("experiment", QUESTIONS)
def test_what_is_expected_of_each_architecture(experiment: str) -> None:
    """The header says what to expect of those that can answer it, and names no other."""
    words = re.findall(r"\w+", expected_of(experiment))
    for model in ARCHITECTURES:  # what is expected, and what it costs
        assert words.count(model) == (0 if (model, experiment) in REFUSED else 2), model


@pytest.mark.parametrize(("experiment", "model"), values_by_day(QUESTIONS, ARCHITECTURES))
def test_a_question_to_each_architecture(experiment: str, model: str) -> None:
    config = composed(f"experiment={experiment}", f"model={model}")
    task, probe = target_of(config, "task").name, choice_of(config)
    assert experiment in ("dates/pairs", f"dates/{task}", f"synthetic/{probe}", f"synthetic/{probe}_{task}")
    if (model, experiment) in REFUSED:
        with pytest.raises(ConfigError, match=f"on model={model}"):
            check_grid(config)
    else:
        check_builds(config)


def choice_of(config: DictConfig) -> str:
    """synthetic/list_ops is ListOps."""
    return re.sub("(?<!^)(?=[A-Z])", "_", target_of(config, "data").__name__.removesuffix("Corpus")).lower()


@pytest.mark.parametrize("probe", ["parity", "majority", "brackets"])
def test_a_probe_with_classes_of_texts_and_of_words_serves_both_tasks(probe: str) -> None:
    for task in ("classification", "tagging"):
        check_builds(composed(f"data=synthetic/{probe}", f"task={task}", "model=decoder_only"))


def test_every_probe_has_an_experiment() -> None:
    probes = {f"synthetic/{name}" for name in options("data/synthetic")}
    assert probes == {name for name in EXPERIMENTS if name.startswith("synthetic/")} - {"synthetic/reverse_tagging"}
    kinds = {OmegaConf.load(CONF / "data" / f"{name}.yaml")._target_.rpartition(".")[2] for name in probes}
    assert kinds | {"SyntheticCorpus"} == {
        kind.__name__ for kind in vars(triptych.data.corpora.synthetic).values() if isinstance(kind, ABCMeta)
    }


def check_builds(config: DictConfig) -> None:
    check_grid(config)
    network = check_network(with_parts(config))
    assert {p.device.type for p in network.parameters()} == {"meta"}
    for key in ("optimizer", "scheduler", "tokenizer"):
        build(config, key)
    check(config, "trainer")
    choose_modes(config)
    for name in config.callbacks:
        check(config, f"callbacks.{name}")


def test_a_training_may_ask_for_deterministic_operations() -> None:
    """torch's backward passes of attention on CUDA are so only then, and not if they may just warn."""
    try:
        for said in (True, False):
            build(composed(f"trainer.deterministic={said}", "trainer.accelerator=cpu"), "trainer", {"logger": False})
            assert torch.are_deterministic_algorithms_enabled() == said
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("experiment", by_day(EXPERIMENTS, EXPERIMENTS[1::3]))
def test_experiment_header(experiment: str) -> None:
    """Each file begins with what it shows, the command, the expected number and its cost."""
    lines = (CONF / "experiment" / f"{experiment}.yaml").read_text().splitlines()
    header = "\n".join(line for line in lines if line.startswith("#"))
    assert lines[0] == "# @package _global_"
    for word in ("Shows:", "Expected:", "Cost:"):
        assert word in header
    command, _ = commands_of(experiment)
    assert command.startswith(f"triptych train experiment={experiment}")
    compose_line(command)


@pytest.mark.parametrize(
    ("experiment", "more"),
    [
        pytest.param(
            name, more, marks=() if {"multi30k", "digits"} & {*re.split("[/_]", name)} else pytest.mark.nightly
        )
        for name in EXPERIMENTS
        for more in commands_of(name)[1]
    ],
)
def test_what_else_a_header_names(experiment: str, more: str) -> None:
    """Overrides that its command takes, too, and the pre-training that comes before."""
    compose_line(more)


def test_names_that_scripts_rely_on() -> None:
    assert options("model") >= {"full", "encoder_only", "decoder_only"}
    assert options("task") >= {"translation", "classification", "tagging", "language_modeling", "denoising"}
    assert options("data") >= {
        "dates",
        "plain_text",
        "parallel_text",
        "labelled_text",
        "tagged_text",
        "question_answering",
        "hub",
        "multi30k",
        "sst2",
        "imdb",
        "wikitext2",
        "ud_english_ewt",
    }
    assert set(EXPERIMENTS) >= {"dates/translation", "dates/classification", "dates/language_modeling"}
    config = composed()
    for key in (
        "seed",
        "trainer.max_steps",
        "run_dir",
        "shape.d_model",
        "shape.num_heads",
        "shape.num_layers",
        "optimizer.lr",
    ):
        assert OmegaConf.select(config, key) is not None, key


@pytest.mark.parametrize("group", ["optimizer", "scheduler", "tokenizer"])
def test_every_option_of_a_group_builds(group: str) -> None:
    for option in options(group) - {"pretrained"}:  # needs a folder
        build(composed(f"{group}={option}"), group)


def test_a_pretrained_tokenizer_needs_a_folder_with_one(tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "nowhere", "no such folder"), (tmp_path, "no tokenizer; looked for")):
        with pytest.raises(ConfigError, match=rf"tokenizer\.dir={folder}: {message}"):
            build(composed("tokenizer=pretrained", f"tokenizer.dir={folder}"), "tokenizer")
    with pytest.raises(ConfigError, match=r"tokenizer\.dir"):
        build(composed("tokenizer=pretrained"), "tokenizer")


@pytest.mark.parametrize(("model", "position"), values_by_day(STACKS, POSITION_NAMES))
def test_block_options_reach_every_stack(model: str, position: str) -> None:
    config = composed(
        f"model={model}",
        f"block/position={position}",
        "block/norm=rms_norm",
        "block/feed_forward=gated_mlp",
        "shape.d_model=32",
    )
    network = check_network(with_parts(config))
    assert not [m for m in network.modules() if type(m).__name__ == "LayerNorm"]
    assert [m for m in network.modules() if type(m).__name__ == "RMSNorm"]
    stacks = [m for m in network.modules() if type(m).__name__ == "Stack"]
    assert {type(stack.position) for stack in stacks} == {POSITIONS[position]}


def test_one_stack_can_be_overridden() -> None:
    network = check_network(with_parts(composed("model=full", "shape.num_layers=3", "model.decoder.num_layers=1")))
    assert (len(network.encoder.layers), len(network.decoder.layers)) == (3, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["task=captioning", "data=drawn_digits", "model=encoder_only"],
            "task=captioning on model=encoder_only: .*=full",
        ),
        (
            ["task=classification", "data=plain_text"],
            "task=classification: data=plain_text has no label, but long_text",
        ),
        (
            ["task=translation", "data=digits", "model=decoder_only"],
            "task=translation: data=digits has no text and no target, but",
        ),
        (["task=tagging", "data=tone_digits", "model=full"], "task=tagging: data=tone_digits has no words and no tags"),
        (["task=captioning", "data=digits", "model=full"], "task=captioning: data=digits has no target"),
        (
            ["task=image_text_matching", "data=drawn_digits", "model=encoder_only"],
            "task=image_text_matching on model=encoder_only: expected model=dual_encoder or dual_decoder",
        ),
        (
            ["task=image_text_matching", "data=drawn_digits", "model=full"],
            "task=image_text_matching on model=full: texts and images are read apart",
        ),
        (
            ["task=captioning", "data=drawn_digits", "model=dual_decoder"],
            "task=captioning on model=dual_decoder: expected task=image_text_matching",
        ),
        (
            ["experiment=matching/drawn", "trainer.accumulate_grad_batches=2"],
            "trainer.accumulate_grad_batches=2: the loss of task=image_text_matching compares all examples",
        ),
        (
            ["experiment=matching/drawn", "batch.global_size=1"],
            "batch.global_size=1: task=image_text_matching compares the examples of",
        ),
        (
            ["experiment=generation/drawn", "task.levels=8"],
            "data.levels=4 and task.levels=8 differ: .*expected data.levels=8",
        ),
        (["task=image_generation", "data=dates", "model=full"], "data=dates has no image.* such as data=image_files$"),
        (["task=transcription", "data=dates", "model=full"], "data=dates has no audio.* such as data=audio_files$"),
        (
            ["task=translation", "data=drawn_digits", "model=full"],
            "task=translation: data=drawn_digits has no text, but image, target, label",
        ),
        (
            ["task=classification", "data=labelled_text", "data.label=null", "model=encoder_only"],
            "task=classification: data.label=null; expected the name of a column",
        ),
        (["task=classification", "data=dates", "model=vit/style"], "data=dates has texts, and model=encoder_only read"),
    ],
)
def test_unsupported_cells_say_why(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_grid(composed(*overrides))


@pytest.mark.parametrize("model", ["full", "prefix_lm"])
def test_parts_are_not_chosen_for_what_cannot_do_the_task(model: str) -> None:
    with pytest.raises(ConfigError, match=f"task=image_text_matching on model={model}: "):
        choose_parts(composed("task=image_text_matching", "data=drawn_digits", f"model={model}"))


def test_debug_fast_is_a_few_steps_of_anything() -> None:
    """It comes after the experiment."""
    for experiment in EXPERIMENTS[::20]:
        config, fast = composed(f"experiment={experiment}"), composed(f"experiment={experiment}", "debug=fast")
        assert fast == OmegaConf.merge(config, FAST)


@pytest.mark.parametrize("line", every_third_by_day(shown()))
def test_commands_of_the_documentation_compose(line: str) -> None:
    compose_line(line)


def test_the_other_commands_compose() -> None:
    assert composed(command="evaluate").data == {}
    assert composed("data=plain_text", command="evaluate").data._target_ == "triptych.data.PlainText"
    assert composed(command="predict").input == "-"


def test_a_stack_with_fewer_positions_than_tokens_is_rejected() -> None:
    config = composed("model=full", "model.decoder.max_length=10", "shape.max_length=20")
    with pytest.raises(ConfigError, match=r"shape\.max_length=20, but a stack has max_length=10"):
        check_network(with_parts(config))
    check_network(with_parts(composed("model=full", "model.decoder.max_length=10", "shape.max_length=10")))
    check_network(
        with_parts(
            composed("model=full", "model.decoder.max_length=10", "shape.max_length=20", "block/position=rotary")
        )
    )

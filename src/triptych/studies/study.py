"""The question, claims and runs of a study, from its YAML file."""

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from graphlib import CycleError, TopologicalSorter
from importlib.resources import files
from itertools import chain
from pathlib import Path

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from triptych.config import ConfigError, suggestion
from triptych.launch.sweep import NOT_PLAIN, Job
from triptych.report.labels import COSTS
from triptych.report.statistics.edges import Edge

FOLDER = Path("outputs/studies")
"""Parent folder of all studies."""
REFERENCE = re.compile(r"\{(\w+)\}")
"""In the overrides of a variant: the run of another variant with the same seed."""


@dataclass
class Claim:
    """A prediction from theory about two variants.

    Attributes:
        statement: the prediction, a sentence.
        rationale: why, with its source.
        better: two variants; the first is predicted to be better.
        equivalent: instead, two variants that are predicted to differ by less than ``margin``.
        margin: in the units of the metric: 0.01 is one percentage point.
        min_difference: with ``better``, the smallest difference that matters, in the same units; None: any.
        score: by its name in the runs' ``task_info``; None: the comparison metric of the task.
        extrapolate: counts only test examples beyond the training range of this measure of difficulty.
        difficulty: counts only test examples with these values of measures of difficulty.
        target_score: instead, compares the cost until the validation reaches this score.
        cost_unit: ``steps``, ``train_flops`` or ``elapsed_s``.
        blind: whether the prediction was made before any result like it was known; None: not stated.
    """

    statement: str = MISSING
    rationale: str = MISSING
    better: list[str] = field(default_factory=list)
    equivalent: list[str] = field(default_factory=list)
    margin: float | None = None
    min_difference: float | None = None
    score: str | None = None
    extrapolate: str | None = None
    difficulty: dict[str, int] = field(default_factory=dict)
    target_score: float | None = None
    cost_unit: str = "steps"
    blind: bool | None = None

    @property
    def variants(self) -> list[str]:
        """The two variants."""
        return [*self.better, *self.equivalent]

    @property
    def reason(self) -> str:
        """The rationale, and whether results like it were known before."""
        known = {True: " (predicted blind)", False: " (predicted after earlier results)", None: ""}
        return self.rationale + known[self.blind]


@dataclass(frozen=True)
class StudyTrial:
    """One combination of values of a variant.

    Attributes:
        values: of the tuned settings.
        jobs: one per seed.
        score: on the validation set, the mean over seeds.
        shown: the score in words.
    """

    values: dict[str, str]
    jobs: list[Job]
    score: float
    shown: str


@dataclass(frozen=True)
class Tuning:
    """The trials of a variant.

    Attributes:
        architecture: of the variant.
        measure: what the scores are.
        trials: all of them.
        chosen: the best one.
        edges: the values of the best one that are the smallest or the largest tried.
        train_flops: training FLOPs of all trials.
    """

    architecture: str
    measure: str
    trials: list[StudyTrial]
    chosen: StudyTrial
    edges: list[Edge]
    train_flops: float

    def curve(self, key: str) -> dict[float, float]:
        """The score against a tuned number, with the best values of the other settings; empty for another setting."""
        fixed = {**self.chosen.values, key: ""}
        try:
            return {float(x.values[key]): x.score for x in self.trials if {**x.values, key: ""} == fixed}
        except (KeyError, ValueError):  # not tuned for this variant, or not a number
            return {}


@dataclass
class Sentence:
    """A sentence of the answer.

    Attributes:
        text: the sentence.
        claims: the numbers of the claims that it answers, from 1; empty: it describes something else.
    """

    text: str = MISSING
    claims: list[int] = field(default_factory=list)


@dataclass
class Study:
    """A study.

    Attributes:
        question: the question.
        runtime_note: measured run time of all its runs.
        common: overrides of all variants, as after ``triptych train -m``; each of several values separated by commas is
            trained.
        variants: the overrides of each variant by name; ``{NAME}`` is the run of another variant with the same seed.
        claims: predictions from theory, written before the first run.
        tune: overrides of the trials, such as ``optimizer.lr=1e-3,2e-3 seed=101``: each variant has a trial for every
            combination of values that they and its own overrides list. Empty: nothing is tuned.
        scaling: whether laws are fitted to the runs as well; if it tunes, to the trials, which have all sizes.
        answer: the answer in sentences; empty before the study has run.
        name: of its file; not a key of the file.
        place: its name or file, as typed for `triptych study`; not a key.
        overrides: typed overrides of all its runs, except for seeds; not a key.
    """

    question: str = MISSING
    runtime_note: str = MISSING
    common: str = MISSING
    variants: dict[str, str] = MISSING
    claims: list[Claim] = MISSING
    tune: str = ""
    scaling: bool = False
    answer: list[Sentence] = field(default_factory=list)
    name: str = ""
    place: str = ""
    overrides: list[str] = field(default_factory=list)

    @property
    def conclusion(self) -> str:
        """The answer as one text."""
        return " ".join(sentence.text for sentence in self.answer)

    @property
    def folder(self) -> Path:
        """Folder of its runs, with a name that needs no quotes in an override."""
        return FOLDER / NOT_PLAIN.sub(".", self.name)

    def command(self, more: Sequence[str] = ()) -> str:
        """The shell command that runs the study again.

        Args:
            more: overrides that come last.
        """
        return shlex.join(["triptych", "study", self.place, *self.overrides, *more])

    def needs(self, variant: str) -> set[str]:
        """The variants that must be trained before this one."""
        return set(REFERENCE.findall(self.variants[variant]))

    def panels(self) -> list[list[str]]:
        """The variants that are tuned together: those that claims compare, directly or through others; each on its own
        if the study does not tune."""
        panels = [[variant] for variant in self.variants]
        for claim in self.claims if self.tune else ():
            joined = [panel for panel in panels if not {*panel}.isdisjoint(claim.variants)]
            panels = [panel for panel in panels if panel not in joined] + [
                sorted(chain(*joined), key=[*self.variants].index)
            ]
        return panels


def override_key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")


def values_of(overrides: Sequence[str]) -> dict[str, str]:
    """The values of overrides by key."""
    return {override_key(override): override.partition("=")[2] for override in overrides}


def find_studies() -> dict[str, Path]:
    """The files of the studies that come with Triptych, by name."""
    return {file.stem: file for file in sorted(Path(str(files("triptych.conf") / "study")).glob("*.yaml"))}


def read_study(name: str) -> Study:
    """Reads a study.

    Args:
        name: of a built-in study, or a YAML file.
    """
    known = find_studies()
    file = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if file is None:
        raise ConfigError(f"study {name}: no such study; expected a name or a YAML file{suggestion(name, list(known))}")
    try:
        found = OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.load(file))
        study = OmegaConf.to_object(found)
    except ConfigKeyError as error:
        keys = [one.name for one in fields(error.object_type)] if error.object_type else []
        raise ConfigError(f"{file}: {error.key}: there is no such key{suggestion(str(error.key), keys)}") from None
    except (OSError, UnicodeError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    assert isinstance(study, Study)
    study.name, study.place = file.stem, name
    if file != known.get(file.stem, file):
        raise ConfigError(
            f"{file}: Triptych has a study {file.stem}, with a folder of that name; choose another file name"
        )
    _check(study, file)
    return study


def _check(study: Study, file: Path) -> None:
    """Raises an error for claims and variants that do not match."""
    if not study.claims or not study.variants:
        raise ConfigError(f"{file}: expected at least one variant and one claim")
    for variant, text in {"common": study.common, **study.variants}.items():
        if not re.fullmatch(r"\w+", variant) or "run_dir=" in text:
            raise ConfigError(f"{file}: variants.{variant}: expected a name of letters, digits and _, and no run_dir")
        for other in REFERENCE.findall(text):
            if other not in study.variants or variant in (other, "common"):
                raise ConfigError(
                    f"{file}: {variant}: {{{other}}} is not another variant{suggestion(other, [*study.variants])}"
                )
    try:
        TopologicalSorter({variant: study.needs(variant) for variant in study.variants}).prepare()
    except CycleError as error:
        raise ConfigError(f"{file}: variants start from each other: {', '.join(error.args[1][1:])}") from None
    for sentence in study.answer:
        for number in sentence.claims:
            if not 1 <= number <= len(study.claims):
                raise ConfigError(f"{file}: answer: claims: {number}: expected a number from 1 to {len(study.claims)}")
    for number, claim in enumerate(study.claims):
        place = f"{file}: claims[{number}]"
        if sorted(map(len, (claim.better, claim.equivalent))) != [0, 2] or len({*claim.variants}) == 1:
            raise ConfigError(f"{place}: expected two variants, as better: [A, B] or equivalent: [A, B]")
        if unknown := [variant for variant in claim.variants if variant not in study.variants]:
            raise ConfigError(f"{place}: {unknown[0]} is not a variant{suggestion(unknown[0], [*study.variants])}")
        if (claim.margin is None) != (not claim.equivalent) or not (
            claim.margin is None or 0 < claim.margin < math.inf
        ):
            raise ConfigError(
                f"{place}: margin={claim.margin}: expected more than 0 with equivalent, and no margin without it"
            )
        if claim.min_difference is not None and not (claim.better and 0 < claim.min_difference < math.inf):
            raise ConfigError(
                f"{place}: min_difference={claim.min_difference}: expected more than 0, and better with it"
            )
        if claim.cost_unit not in COSTS:
            raise ConfigError(f"{place}: cost_unit={claim.cost_unit}: expected one of {', '.join(COSTS)}")
        if claim.target_score is None and claim.cost_unit != "steps":
            raise ConfigError(f"{place}: cost_unit={claim.cost_unit}: expected target_score: SCORE with it")
        chosen = {"extrapolate": claim.extrapolate, "difficulty": claim.difficulty, "target_score": claim.target_score}
        if len(given := [key for key, value in chosen.items() if value]) > 1:
            raise ConfigError(f"{place}: {' and '.join(given)}: expected one of them")

"""What a study asks, predicts and trains, as its YAML file says it."""
# Takes a DictConfig: of the jobs of a sweep, as Hydra composes them, with its own node.

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from triptych.config import ConfigError, suggestion
from triptych.launch.sweep import NOT_PLAIN, Job, split_sweep
from triptych.report.wording import COSTS

FOLDER = Path("outputs/studies")
"""The folder of each study goes into this one."""
REFERENCE = re.compile(r"\{(\w+)\}")
"""In the overrides of an arm: the run of another one with the same seed."""
SAME_SEED = "@seed"


@dataclass
class Claim:
    """What theory predicts of two arms.

    Attributes:
        says: the prediction, a sentence.
        because: why, with its source.
        better: two arms, of which the first is predicted to be better.
        alike: instead, two arms that are predicted to differ by less than ``within``.
        within: as the metric counts: 0.01 is a point of a share.
        score: by its name in the runs' ``task_facts``; None: by which runs of this task are compared.
        beyond: counts only the test examples beyond the training's range of this measure of difficulty.
        until: instead, what it costs until the validation has reached this score.
        cost: counted in ``updates``, ``train_flops`` or ``time_s``.
    """

    says: str = MISSING
    because: str = MISSING
    better: list[str] = field(default_factory=list)
    alike: list[str] = field(default_factory=list)
    within: float | None = None
    score: str | None = None
    beyond: str | None = None
    until: float | None = None
    cost: str = "updates"

    @property
    def arms(self) -> list[str]:
        """Both of them."""
        return [*self.better, *self.alike]


@dataclass
class Study:
    """A study.

    Attributes:
        question: that it asks.
        cost: of all its trainings, as it was measured.
        common: overrides of all arms, as after ``triptych train -m``; what is listed by commas is each trained.
        arms: the overrides of each arm, by its name; ``{NAME}`` is the run of another arm with the same seed.
        claims: what theory predicts, written down before the first training.
        scaling: whether laws are fitted to the runs, too.
        answer: what it has found, in a sentence; empty before it was run.
        name: of its file; not a key of it.
        place: by which `triptych study` finds it again: its name, or its file; likewise.
        overrides: of all its trainings that were typed, but for seeds; likewise.
    """

    question: str = MISSING
    cost: str = MISSING
    common: str = MISSING
    arms: dict[str, str] = MISSING
    claims: list[Claim] = MISSING
    scaling: bool = False
    answer: str = ""
    name: str = ""
    place: str = ""
    overrides: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """Of its runs, by a name that needs no quotes in an override."""
        return FOLDER / NOT_PLAIN.sub(".", self.name)

    def command(self, more: Sequence[str] = ()) -> str:
        """What trains it again, as a shell reads it.

        Args:
            more: overrides that come last.
        """
        return shlex.join(["triptych", "study", self.place, *self.overrides, *more])

    def needs(self, arm: str) -> set[str]:
        """The arms that have to be trained before one."""
        return set(REFERENCE.findall(self.arms[arm]))

    def jobs(self, more: list[str]) -> dict[str, list[Job]]:
        """The trainings of each arm.

        Args:
            more: overrides that come last.
        """
        return {arm: self._jobs_of(arm, more) for arm in self.arms}

    def _jobs_of(self, arm: str, more: list[str]) -> list[Job]:
        own = [*shlex.split(self.common), *shlex.split(self.arms[arm])]
        texts = [REFERENCE.sub(lambda found: f"{self.folder}/{found[1]}/{SAME_SEED}", text) for text in own]
        try:
            jobs = split_sweep([*texts, *more])
        except HydraException as error:
            raise ConfigError(f"study {self.name}, arm {arm}: {' '.join(str(error).split())}") from None
        named = {key_of(text) for text in own if "," in text} | {key_of(text) for text in more} | {"seed"}
        return [self._job(arm, overrides, named) for overrides in jobs]

    def _job(self, arm: str, overrides: list[str], named: set[str]) -> Job:
        values = {key_of(override): override.partition("=")[2] for override in overrides}
        if "seed" not in values:
            raise ConfigError(f"study {self.name}, arm {arm}: without a seed; expected seed=1,2,3 or so in common")
        known = [override.replace(SAME_SEED, f"seed-{values['seed']}") for override in overrides]
        own = {key: value for key, value in values.items() if key in named}
        folder = "--".join(f"{key}-{value}" for key, value in own.items())
        title = " ".join([arm, *(f"{key}={value}" for key, value in own.items())])
        return Job(known, self.folder / arm / NOT_PLAIN.sub(".", folder), DictConfig({}), title)


def key_of(override: str) -> str:
    """Of an override, its key."""
    return override.partition("=")[0].lstrip("+~")


def find_studies() -> dict[str, Path]:
    """The files of the studies that come with Triptych, by their names."""
    return {file.stem: file for file in sorted(Path(str(files("triptych.conf") / "study")).glob("*.yaml"))}


def read_study(name: str) -> Study:
    """Reads a study.

    Args:
        name: of one of ours, or a YAML file.
    """
    known = find_studies()
    file = Path(name) if name.endswith((".yaml", ".yml")) else known.get(name)
    if file is None:
        raise ConfigError(f"study {name}: no such study, and no YAML file{suggestion(name, list(known))}")
    try:
        found = OmegaConf.merge(OmegaConf.structured(Study), OmegaConf.load(file))
        study = OmegaConf.to_object(found)
    except (OSError, UnicodeError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{file}: {' '.join(str(error).split())}") from None
    assert isinstance(study, Study)
    study.name, study.place = file.stem, name
    if file != known.get(file.stem, file):
        raise ConfigError(
            f"{file}: {file.stem} is a study of Triptych's own, with a folder of that name; expected another"
        )
    _check(study, file)
    return study


def _check(study: Study, file: Path) -> None:
    """Refuses claims and arms that do not belong together."""
    if not study.claims or not study.arms:
        raise ConfigError(f"{file}: expected an arm and a claim at least")
    for arm, text in {"common": study.common, **study.arms}.items():
        if not re.fullmatch(r"\w+", arm) or "run_dir=" in text:
            raise ConfigError(f"{file}: arms.{arm}: expected a name of letters, digits and _, and no run_dir")
        for other in REFERENCE.findall(text):
            if other not in study.arms or arm in (other, "common"):
                raise ConfigError(f"{file}: {arm}: {{{other}}} is no other arm{suggestion(other, [*study.arms])}")
    for number, claim in enumerate(study.claims):
        place = f"{file}: claims[{number}]"
        if sorted(map(len, (claim.better, claim.alike))) != [0, 2] or len({*claim.arms}) == 1:
            raise ConfigError(f"{place}: expected two arms, as better: [A, B] or alike: [A, B]")
        if unknown := [arm for arm in claim.arms if arm not in study.arms]:
            raise ConfigError(f"{place}: {unknown[0]} is no arm{suggestion(unknown[0], [*study.arms])}")
        if (claim.within is None) != (not claim.alike) or not (claim.within is None or 0 < claim.within < math.inf):
            raise ConfigError(f"{place}: within={claim.within}: expected more than 0 beside alike, and there alone")
        if claim.cost not in COSTS:
            raise ConfigError(f"{place}: cost={claim.cost}: expected one of {', '.join(COSTS)}")
        if claim.until is None and claim.cost != "updates":
            raise ConfigError(f"{place}: cost={claim.cost}: expected until: SCORE beside it")
        if claim.beyond is not None and claim.until is not None:
            raise ConfigError(f"{place}: beyond and until: expected one of them")

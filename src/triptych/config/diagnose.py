"""Error messages for invalid overrides: the key, the value, what was expected and the nearest valid choice."""
# Takes a DictConfig: it checks keys and classes that any file may name.

import dataclasses
import difflib
import re
import shlex
import typing
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from hydra import compose, initialize_config_module
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from triptych.config.build import expected, spell_choices
from triptych.config.errors import MOST, ConfigError, RunError, and_others, nearest
from triptych.config.identity import EVERY_STACK
from triptych.config.overrides import quote
from triptych.config.paths import check_writable
from triptych.config.schema import ARCHITECTURES, PARTS, DoctorConfig, EvaluateConfig, PredictConfig, TrainConfig
from triptych.config.terms import REMARKS, THEIR_LAUNCHER_KEYS, alike, our_key, renamed_choice, renamed_key

SCHEMAS = {"train": TrainConfig, "doctor": DoctorConfig, "evaluate": EvaluateConfig, "predict": PredictConfig}
OPTIONS = ("--multirun", "--config-dir", "--help", "--resolve", "--shell-completion")
"""Hydra's options, to suggest if one is misspelled."""
LONG = 160
"""Maximum number of characters of a list of choices; longer lists are grouped by family."""


def explain(error: BaseException, command: str, arguments: Sequence[str]) -> str | None:
    """The message for the user, in one or two lines; None if the error is a bug.

    Args:
        error: the exception.
        command: sub-command, whose configuration has the valid names.
        arguments: arguments of the command line.
    """
    if isinstance(error, ConfigError | RunError):
        return str(error)
    if isinstance(error.__cause__, ConfigError):  # raised by an object that Hydra built
        return str(error.__cause__)
    if isinstance(error, OSError) and not isinstance(error, HydraException):
        return place_of(error, arguments)
    message = str(error)
    if isinstance(error, ValueError) and message.startswith("Config group override must be a string or a list"):
        return not_a_choice(arguments)
    is_index = re.search("invalid literal for int|is not an int|index out of range", f"{message} {error.__cause__}")
    if is_index and (answer := in_a_list(command, arguments)):
        return answer
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return None
    cause = error.__cause__
    details = str(cause) if isinstance(cause, OmegaConfBaseException) else message
    if match := re.search(r"Could not (?:find|load) '([^']+)'", message):
        return missing_choice(match[1], arguments)
    if match := re.search(r"Could not override '([^']+)'", message) or re.search(r"full_key: (\S+)", details):
        key = match[1]
        if new := renamed_key(key):
            return f"{key} was renamed to {new}"
        answer = chosen_by_folder(key, arguments) or in_no_place(key) or chosen_by_group(key, arguments)
        answer = answer or of_another_part(key, arguments) or of_another_choice(key, arguments)
        if answer:
            return answer
        if "is not in struct" in details or "not in '" in details:
            return f"{key}: there is no such key{nearest_key(key, command, arguments)}"
        return wrong_value(key, command, arguments) or f"{key}: {details.splitlines()[0]}"
    if match := re.search(r"An item is already at '([^']+)'", message):
        return f"{match[1]} exists: drop the +"
    if "does not support sweep type" in message:
        if command == "doctor":
            return "doctor checks a single run and does not search an interval. Set one value, or a list (key=a,b,c)"
        return "an interval needs a search: add hydra/sweeper=optuna, or list the values (key=a,b,c)"
    if "requires --multirun" in message:
        return f"{message.splitlines()[0].replace('--multirun', '-m')}"
    if "Ambiguous value for argument" in message:
        quoted = next(map(in_quotes, (a for a in arguments if f"'{a}'" in message)), None)
        text = f"; a single text needs quotes: {quoted}" if quoted else ""
        said = message.splitlines()[0]
        return f"{said}. For a sweep over several values, add -m; a list is written 'key=[a,b]'{text}."
    for argument in arguments:
        if (reason := why_unreadable(argument)) is None:
            continue
        if quoted := in_quotes(argument):
            key, _, value = argument.partition("=")
            if value.startswith("~/"):
                return f"{argument}: the shell expands ~ only at the start of a word; expected {key}=$HOME{value[1:]}"
            says_more = "Unknown function" in reason
            said = reason.partition("': ")[2] if says_more else "Hydra reads these characters as syntax"
            list_form = "; a list is written 'key=[a,b]'" if "[" in value else ""
            return f"{argument}: {said}; a text needs quotes: {quoted}{list_form}"
        return f"{argument}: {reason} (an override is key=value without spaces)"
    return message.splitlines()[0] if "\n" not in message.strip() else " ".join(message.split("\n")[:2])


def why_unreadable(argument: str) -> str | None:
    """Hydra's error for an argument; None: it is valid, or not an override."""
    try:
        parse_hydra_overrides([argument])
    except HydraException as error:
        said = [line for line in str(error).splitlines() if not line.startswith("Error parsing override")]
        return said[0].partition(": ")[2] if said[0].startswith("LexerNoViableAlt") else said[0]
    return None


def in_quotes(argument: str) -> str | None:
    """The override with its value quoted as text for a shell; None: it is not an override."""
    key, equals, value = argument.partition("=")
    if not equals or not re.fullmatch(r"[+~]*[\w.@/:-]+", key, re.ASCII):
        return None
    if not re.search('["$`\\\\!]', value):
        return f"'{key}=\"{value}\"'" if "'" not in value else f'"{key}=\\"{value}\\""'
    return shlex.quote(f"{key}={quote(value)}")


def not_an_option(argument: str, command: str, arguments: Sequence[str]) -> str:
    """The message for an argument like ``--seed=3``, with the setting to use instead.

    Args:
        argument: one of the arguments, with its value if it has an equals sign.
        arguments: arguments of the command line.
    """
    name, _, value = argument.partition("=")
    key, following = name.lstrip("-"), [*arguments, ""][list(arguments).index(argument) + 1]
    value = value or (following if following and not re.search("[-=]", following) else "...")
    if near := difflib.get_close_matches(name, OPTIONS, n=1, cutoff=0.85):
        return f"{name}: there is no such option; did you mean {near[0]}?"
    if key in keys_of(command, choices_in(arguments)):
        return f"{name}: settings are written key=value; did you mean {key}={value}?"
    return f"{name}: settings are written key=value{nearest_key(key, command, arguments)}"


def without_key(number: int, arguments: Sequence[str], command: str) -> str:
    """The message for the argument at a position that is not key=value."""
    argument, following = arguments[number], [*arguments, ""][number + 1]
    previous = arguments[number - 1] if number else ""
    if argument.startswith("=") or previous.endswith("="):
        return f"{previous} {argument}: write it without spaces, {previous}{argument}"
    if following.startswith("="):
        whole = f"{argument}{following}{[*arguments, ''][number + 2] if following == '=' else ''}"
        return f"{argument} {following}: write it without spaces, {whole}"
    key, colon, value = argument.partition(":")
    if colon and "/" not in key:
        return f"{argument}: expected key=value; did you mean {key}={value}?"
    if "/" not in argument and re.fullmatch("[^-=][^=]*", following):
        return f"{argument} {following}: expected key=value; did you mean {argument}={following}?"
    if command in ("evaluate", "predict"):
        return f"{argument}: expected key=value; did you mean checkpoint={argument}?"
    if argument in keys_of(command, choices_in(arguments)) or choices_of(argument, arguments):
        choices = choices_of(argument, arguments)
        return f"{argument}: expected key=value, such as {argument}={choices[0] if choices else '...'}"
    name = (argument.partition("experiment/")[2] or argument).removesuffix(".yaml")
    experiments = choices_of("experiment", arguments)
    if name in experiments:
        return f"{argument}: expected key=value; did you mean experiment={name}?"
    if meant := with_architecture(name, experiments):
        return f"{argument}: expected key=value; {meant}"
    return f"{argument}: expected key=value, such as experiment=NAME{nearest(name, experiments)}"


def without_choice(group: str, arguments: Sequence[str]) -> str:
    """The message for a required group that is removed (~logger)."""
    return f"~{group}: required by every run; {describe_choices('', choices_of(group, arguments))}"


def place_of(error: OSError, arguments: Sequence[str]) -> str | None:
    """The message for a file or folder that cannot be used; None if the error is a bug."""
    for argument in arguments:
        if argument.startswith("run_dir="):
            try:
                check_writable("run_dir", Path(argument.partition("=")[2]))
            except ConfigError as found:
                return str(found)
    if isinstance(error, FileExistsError | NotADirectoryError | PermissionError):
        return f"{error.filename}: {error.strerror}"
    return None


def wrong_value(key: str, command: str, arguments: Sequence[str]) -> str | None:
    """The message for a value of the wrong type; None: the key has no type."""
    hint: typing.Any = SCHEMAS[command]
    for name in key.split("."):
        hints = typing.get_type_hints(hint) if isinstance(hint, type) else {}
        if name not in hints:
            return None
        hint = hints[name]
    if dataclasses.is_dataclass(hint):
        names = [f"{key}.{field.name}" for field in dataclasses.fields(hint)]
        return f"{key} is a node with settings; expected one of {', '.join(names[:MOST])}{and_others(names, MOST)}"
    values = [a.partition("=")[2] for a in arguments if a.partition("=")[0].lstrip("+") == key]
    return f"{key}={values[-1]}: {expected(values[-1], hint)}" if values else None


def in_a_list(command: str, arguments: Sequence[str]) -> str | None:
    """The message for data.split_names.validation=0.1 if data.split_names is a list; None: no key is a list."""
    with initialize_config_module("triptych.conf", version_base="1.3"):
        config = compose(command, overrides=list(choices_in(arguments)))
    for override in parse_hydra_overrides(arguments):
        key = override.key_or_group
        names = key.split(".")
        for number in range(1, len(names)):
            parent, name = ".".join(names[:number]), names[number]
            node = OmegaConf.select(config, parent, throw_on_missing=False)
            if isinstance(node, ListConfig) and not (name.isdecimal() and int(name) < len(node)):
                values = spell_choices(OmegaConf.to_container(node))
                return f"{override.input_line}: {parent} is a list; expected {parent}={values}"
        is_choice = override.package is not None or choices_of(key, arguments)
        if not (is_choice or override.is_sweep_override() or override.is_delete() or override.is_hydra_override()):
            # a later override may set a key of this list
            OmegaConf.update(config, key, override.value(), force_add=True)
    return None


def not_a_choice(arguments: Sequence[str]) -> str:
    """The message for a group that is set to null, a number or true."""
    for override in parse_hydra_overrides(arguments):
        group = override.key_or_group
        if override.is_delete() or override.is_sweep_override() or not choices_of(group, arguments):
            continue
        if not isinstance(override.value(), str | list):
            return missing_choice(f"{group}/{str(override.input_line).partition('=')[2]}", arguments)
    return "expected group=NAME, or group=[NAME,NAME]"


def missing_choice(path: str, arguments: Sequence[str]) -> str:
    """The message for an unknown choice of a group, with the valid choices or the nearest.

    Args:
        path: group and choice, for example "model/ful"; a choice may contain slashes, as experiments do.
        arguments: arguments of the command line.
    """
    parts = path.split("/")
    keys = [override.key_or_group for override in parse_hydra_overrides(arguments)]
    for group in (*(key for key in keys if path.startswith(f"{key}/")), parts[0], "/".join(parts[:2])):
        if choices := choices_of(group, arguments):
            choice = path.removeprefix(f"{group}/")
            if new := renamed_choice(group, choice):
                return f"{group}={choice} was renamed to {group}={new}"
            meant = with_architecture(choice, choices) or describe_choices(choice, choices)
            return f"{group}={choice}: there is no such choice; {meant}"
    return f"{parts[0]}: there is no such group"


def with_architecture(name: str, experiments: Sequence[str]) -> str | None:
    """The suggestion for an experiment name that ends with an architecture, which model= chooses; None: it does not."""
    for architecture in ARCHITECTURES:
        question = name.removesuffix(f"_{architecture}")
        if question != name and question in experiments:
            return f"did you mean experiment={question} model={architecture}?"
    return None


def chosen_by_folder(key: str, arguments: Sequence[str]) -> str | None:
    """The message for model/bert=base, where the folder belongs to the choice; None: the key has no such folder."""
    group, _, folder = key.partition("/")
    for override in parse_hydra_overrides(arguments):
        choice = f"{folder}/{override.value()}"
        if override.key_or_group == key and choice in choices_of(group, arguments):
            return f"{override.input_line}: the folder belongs to the choice; did you mean {group}={choice}?"
    return None


def chosen_by_group(key: str, arguments: Sequence[str]) -> str | None:
    """The message for block.position=rotary instead of block/position=rotary; None: the key is not a part."""
    group, place = f"block/{leaf_of(key)}", f"block/{leaf_of(key)}@{key}"
    if key in ("head", "heads.tokens", "heads.classes", "heads.tags"):
        group, place = "head", f"head@{'heads.tokens' if key == 'head' else key}"
    elif leaf_of(key) not in PARTS or key.count(".") != (1 if key.startswith("block.") else 2):
        return None
    elif key.startswith("block."):
        place = group
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name.lstrip("+") == key:
            choices = choices_of(group, arguments)
            near = [*alike(value, choices), *difflib.get_close_matches(value, choices), "NAME"][0]
            return f"{argument}: a part is chosen by its config group; did you mean {place}={near}?"
    return None


def in_no_place(key: str) -> str | None:
    """The message for block/position@decoder=rotary, a package without parts; None: the key has no package."""
    group, _, at = key.partition("@")
    part = group.removeprefix("block/")
    if not at or part not in PARTS:
        return None
    stack = "encoder" if "encoder" in at else "decoder"
    return f"{key}: {at} has no parts; expected {group}, or {group}@model.{stack}.{part} for one stack"


def of_another_part(key: str, arguments: Sequence[str]) -> str | None:
    """The message for block.position.theta if only another choice has a theta; None: no choice has one."""
    node, _, option = key.rpartition(".")
    group = f"block/{leaf_of(node)}"
    if leaf_of(node) not in PARTS:
        return None
    if chosen := options_of_parts(arguments).get(f"block.{leaf_of(node)}.{option}"):
        place = chosen if node.startswith("block.") else chosen.replace(group, f"{group}@{node}")
        return f"{key}: there is no such key; {place} has it"
    return None


def of_another_choice(key: str, arguments: Sequence[str]) -> str | None:
    """The message for optimizer.momentum if only another choice of the group has one; None: no choice has one."""
    group, _, option = key.partition(".")
    if key.startswith(("hydra.launcher.", "hydra.sweeper.")):
        group, option = key.rpartition(".")[0].replace(".", "/"), leaf_of(key)
    options_of = parts_in(group, arguments)
    having = [choice for choice, options in options_of.items() if option in options]
    if not having and group == "hydra/launcher":
        every = dict.fromkeys(name for options in options_of.values() for name in options)
        theirs = [ours for ours, names in THEIR_LAUNCHER_KEYS.items() if option in names.split()]
        if near := [*theirs, *difflib.get_close_matches(option, every)][:1]:
            having = [choice for choice, options in options_of.items() if near[0] in options]
            meant = f"{key.removesuffix(option)}{near[0]} ({group}={having[0]})"
            return f"{key}: there is no such key; did you mean {meant}?"
    if not having:
        return None
    *others, last = having
    listed = f"{', '.join(others)} and {last} have" if others else f"{last} has"
    return f"{key}: there is no such key; {group}={listed} it"


def options_of_parts(arguments: Sequence[str]) -> dict[str, str]:
    """The first choice that has each option of a part, such as block/position=rotary for block.position.theta."""
    options: dict[str, str] = {}
    for part in PARTS:
        for choice, keys in parts_in(f"block/{part}", arguments).items():
            for key in keys:
                options.setdefault(f"block.{part}.{key}", f"block/{part}={choice}")
    return options


def parts_in(group: str, arguments: Sequence[str]) -> dict[str, list[str]]:
    """The parts of a group and their options, without files that only set options."""
    found = {}
    for choice in choices_of(group, arguments):
        content = OmegaConf.load(find_choice(group, choice, arguments))
        if isinstance(content, DictConfig) and "_target_" in content:
            found[choice] = [str(key) for key in content if key not in ("defaults", "_target_", "_partial_")]
    return found


def describe_parts(arguments: Sequence[str]) -> str:
    """One line per group of parts, with the choices and their options; also those in the user's config folder."""
    lines = []
    for part in PARTS:
        parts = parts_in(f"block/{part}", arguments)
        described = [f"{choice} ({', '.join(keys)})" if keys else choice for choice, keys in parts.items()]
        lines.append(f"    block/{part:<17} {', '.join(described)}")
    return "\n".join(lines)


def find_choice(group: str, choice: str, arguments: Sequence[str]) -> Path:
    """The file of a choice, in the user's config folder or in conf."""
    folders = [*own_folders(arguments), Path(str(files("triptych.conf")))]
    return next(file for folder in folders if (file := folder / group / f"{choice}.yaml").is_file())


def describe_choices(choice: str, choices: Sequence[str]) -> str:
    """Lists the choices; if there are many, only the nearest or the families, such as the sizes of a model."""
    near, every = nearest(choice, choices), ", ".join(choices)
    if len(every) <= LONG:
        return f"expected one of {every}{near}"
    if near:
        return near.removeprefix("; ")
    families: dict[str, list[str]] = {}
    for name in choices:
        begin = re.match("[^-/]*[-/]|[^_]*_|", name)  # prefix of a model or experiment, or of a name like date_pairs
        families.setdefault(begin[0] if begin and begin[0] else name, []).append(name)
    some = [names[0] if len(names) == 1 else f"{begin}... ({len(names)})" for begin, names in families.items()]
    return f"expected one of {', '.join(some)}"


def choices_of(group: str, arguments: Sequence[str]) -> list[str]:
    """The choices of a group, including those in the user's config folder; empty: there is no such group.

    Files in a subfolder are choices if they have a ``@package`` line, as bert/base and synthetic/copy; other subfolders
    are separate groups (model/embedding)."""
    found = {
        file.relative_to(folder / group).with_suffix("").as_posix()
        for folder in (Path(str(files("triptych.conf"))), *own_folders(arguments))
        for file in (folder / group).rglob("*.yaml")
        if file.parent == folder / group or b"# @package " in file.read_bytes()
    }
    return sorted(found)


def check_choices(arguments: Sequence[str]) -> None:
    """Raises an error for a file that is not a choice of its group (model=embedding/tokens), a list where one choice is
    expected, and the group of a part at the end of a key."""
    for argument in arguments:
        group, _, names = argument.partition("=")
        if group.partition("@")[0] in [f"block/{part}" for part in PARTS] and names.startswith("["):
            raise ConfigError(f"{argument}: expected one part, such as {group}={re.split('[],[]', names)[1]}")
        if group in ("data", "model", "optimizer", "scheduler", "shape", "task", "tokenizer") and names.startswith("["):
            several = names.strip("[]").replace(" ", "")
            raise ConfigError(
                f"{argument}: expected one choice, such as {group}={several.partition(',')[0]}. To run each of them, "
                f"use -m {group}={several}"
            )
        if (match := re.fullmatch(r"(model[.]\w+)[.]block/(\w+)", group)) and match[2] in PARTS:
            raise ConfigError(f"{argument}: did you mean block/{match[2]}@{match[1]}.{match[2]}={names}?")
        for name in names.split(",") if "/" in names and choices_of(group, arguments) else ():
            file = Path(str(files("triptych.conf")), group, f"{name}.yaml")
            if file.is_file() and name not in choices_of(group, arguments):
                raise ConfigError(missing_choice(f"{group}/{name}", arguments))


def own_folders(arguments: Sequence[str]) -> list[Path]:
    """The folder given by --config-dir, if any."""
    folders = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        name, _, value = argument.partition("=")
        if (value and name in ("--config-dir", "-cd")) or previous in ("--config-dir", "-cd"):
            folders.append(Path(value or argument).absolute())
    return folders


def parse_hydra_overrides(arguments: Sequence[str]) -> list[Override]:
    """The overrides among the arguments."""
    return OverridesParser.create().parse_overrides([a for a in arguments if "=" in a and not a.startswith("-")])


def check_key(key: str, command: str, arguments: Sequence[str]) -> None:
    """Raises an error if the configuration of a command has no such key."""
    if key not in keys_of(command, choices_in(arguments), with_hydra=key.startswith("hydra.")):
        raise ConfigError(f"{key}: there is no such key{nearest_key(key, command, arguments)}")


def nearest_key(key: str, command: str, arguments: Sequence[str]) -> str:
    """The suggestion for an unknown key: its name here if other libraries use it, the same name in another node, a
    similar name, or the keys of the same node."""
    every = keys_of(command, choices_in(arguments), with_hydra=key.startswith("hydra."))
    keys = [other for other in every if other != key]
    leaf, parent = leaf_of(key), key.rpartition(".")[0]
    if ours := our_key(key, keys):
        remark = REMARKS.get(ours, "")
        if ours.startswith("block/") and (option := our_key(key, options := options_of_parts(arguments))):
            ours, remark = option, f"{options[option]} has it"
        if (sibling := f"{parent}.{ours.partition('.')[2]}") in keys:  # for one stack, model.decoder.layers
            ours = sibling
        elif parent in EVERY_STACK:  # another part for one stack, model.decoder.gated
            for part in PARTS:
                remark = remark.replace(f"block/{part}=", f"block/{part}@{parent}.{part}=")
                remark = remark.replace(f"block.{part}.", f"{parent}.{part}.")
                ours = f"block/{part}@{parent}.{part}" if ours == f"block/{part}" else ours
                ours = ours.replace(f"block.{part}.", f"{parent}.{part}.")
        return f"; did you mean {ours}{f' ({remark})' if remark else ''}?"
    beside = [other for other in keys if other.rpartition(".")[0] == parent]
    for candidates, likeness in ((keys, 1), (beside, 0.6), (keys, 0.8)):
        names = difflib.get_close_matches(leaf, {leaf_of(other) for other in candidates}, cutoff=likeness)
        like = [other for other in candidates if leaf_of(other) in names]
        if key.count(".") < 2:  # prefer the settings of all stacks to those of one
            shared = [other for other in like if other.count(".") < 2 and not other.startswith("audio_embedding.")]
            like = shared or like
        if like:
            return f"; did you mean {max(like, key=lambda o: difflib.SequenceMatcher(None, key, o).ratio())}?"
    while parent and not beside:
        parent = parent.rpartition(".")[0]
        beside = [other for other in keys if other.rpartition(".")[0] == parent]
    return f"; expected one of {', '.join(beside[:MOST])}{and_others(beside, MOST)}"


@cache
def keys_of(command: str, choices: tuple[str, ...], *, with_hydra: bool = False) -> tuple[str, ...]:
    """Every key of a command with the chosen groups."""
    with initialize_config_module("triptych.conf", version_base="1.3"):
        try:
            config = compose(command, overrides=list(choices), return_hydra_config=with_hydra)
        except (HydraException, OmegaConfBaseException):  # the error is in a chosen file
            config = compose(command)
    groups = ("experiment", "debug", *(f"block/{part}" for part in PARTS)) if command in ("train", "doctor") else ()
    return (*all_keys(config), *groups)


def leaf_of(key: str) -> str:
    """The last name of a key."""
    return key.rpartition(".")[2]


def choices_in(arguments: Sequence[str]) -> tuple[str, ...]:
    """The overrides that choose groups (in a sweep, the first value), and the user's config folder."""
    chosen = [override for override in parse_hydra_overrides(arguments) if choices_of(override.key_or_group, arguments)]
    lines = [
        f"{override.key_or_group}={next(iter(override.sweep_string_iterator()))}"
        if override.is_sweep_override()
        else str(override.input_line)
        for override in chosen
    ]
    return (*lines, *(f"hydra.searchpath=['file://{folder}']" for folder in own_folders(arguments)))


def all_keys(config: DictConfig, prefix: str = "") -> Iterator[str]:
    """Every key of a configuration that a user may set; each node before its children."""
    for name in map(str, config):
        if name in ("_target_", "_partial_"):
            continue
        yield prefix + name
        value = config._get_node(name)
        if isinstance(value, DictConfig) and not value._is_none() and not value._is_missing():
            yield from all_keys(value, f"{prefix}{name}.")

"""Reads and writes the tokenizer files of Hugging Face folders with the ``tokenizers`` library only.

No code from a folder is executed (``auto_map``), and no pickle is loaded.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from triptych.config import error_prefix
from triptych.data.readers.files import read_lines, read_text
from triptych.data.tokenizers.sentencepiece import Kind, Piece, SentencePieceModel, decoder
from triptych.data.tokenizers.tokenizer import SpecialTokens, Tokenizer
from triptych.storage.atomic import replacing, write_text

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class PretrainedTokenizer:
    """The tokenizer of a Hugging Face folder, which is not trained.

    Args:
        dir: the folder.

    Raises:
        ValueError: no such folder, or no valid tokenizer (see ``read_tokenizer``).
    """

    def __init__(self, *, dir: str) -> None:
        folder = Path(dir)
        if not folder.is_dir():
            raise ValueError(f"tokenizer.dir={dir}: no such folder ({folder.resolve()})")
        with error_prefix("tokenizer.dir="):  # its messages start with the folder
            self._tokenizer = read_tokenizer(folder)

    def train(self, texts: Iterable[str], targets: Iterable[str] = ()) -> Tokenizer:
        """Returns the tokenizer; the texts are not used."""
        return self._tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder: BERT, RoBERTa, GPT-2, T5, BART, Pegasus, MarianMT, LLaMA, or any
    other that ``tokenizer.json`` describes.

    ``begin`` and ``end`` are the tokens that the folder's tokenizer adds around a text. Missing special tokens default
    to related ones: bos to cls, else eos; eos to sep; sep and pad to eos. Folders from ``write_tokenizer`` define all
    of them.

    Args:
        folder: contains ``tokenizer.json``; or ``vocab.txt`` (WordPiece), ``vocab.json`` and ``merges.txt`` (byte
            pairs), ``spiece.model`` or ``tokenizer.model`` (SentencePiece), or ``source.spm``, ``target.spm`` and
            ``vocab.json`` (MarianMT). ``tokenizer_config.json``, ``special_tokens_map.json``, ``added_tokens.json`` and
            ``config.json`` are optional.

    Raises:
        ValueError: no tokenizer, or inconsistent files; the message names the file.
    """
    settings = _TokenizerFiles.read(folder)
    try:
        backend = _FORMATS[settings.path.name].read(settings)
        backend.no_truncation()
        backend.no_padding()
        roles = _add_tokens(backend, settings)
        special = _special_tokens(backend, settings, roles)
        _check_model(backend, settings, special, roles)
        backend.encode("\U0010ffff")  # fails without an unknown token
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception, and a BaseException if it panics
        message = str(error)
        if not (isinstance(error, ValueError) and message.startswith(str(folder))):
            message = f"{settings.path}: this file, or another one in its folder, is invalid ({message})"
        raise ValueError(message.splitlines()[0]) from None
    ids = sorted(backend.get_vocab().values())
    if ids != list(range(len(ids))):
        raise ValueError(f"{settings.path}: {len(ids)} tokens, but their ids are not 0 to {len(ids) - 1}")
    backend.post_processor = None
    if settings.path.name == "source.spm":
        return Tokenizer(backend, special, ((folder / "source.spm").read_bytes(), (folder / "target.spm").read_bytes()))
    keep_out_of_text(backend)
    return Tokenizer(backend, replace(special, chat_template=_chat_template(folder, settings.tokenizer)))


def _chat_template(folder: Path, said: Mapping[str, Any]) -> str:
    """Returns the template from ``chat_template.jinja`` or ``tokenizer_config.json``; of several, the default."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_text(path)
    template = said.get("chat_template") or ""
    if isinstance(template, list):
        named = {str(one.get("name")): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default") or ""
    if not isinstance(template, str):
        raise ValueError(f"{folder / 'tokenizer_config.json'}: chat_template is not a string")
    return template


def write_tokenizer(
    tokenizer: Tokenizer,
    folder: Path,
    *,
    begin: Sequence[int] | None = None,
    end: Sequence[int] | None = None,
    padding_side: Literal["left", "right"] = "right",
    model_max_length: int,
    has_token_types: bool = False,
) -> None:
    """Writes ``tokenizer.json``, ``tokenizer_config.json`` and ``special_tokens_map.json``, for ``AutoTokenizer`` of
    transformers and for ``read_tokenizer``. MarianMT has ``source.spm``, ``target.spm`` and ``vocab.json`` instead of
    the first; its ``AutoTokenizer`` appends eos, regardless of ``begin`` and ``end``.

    Args:
        tokenizer: the tokenizer.
        folder: an existing folder.
        begin: ids that ``AutoTokenizer`` adds before a text; None: ``special.begin``.
        end: ids that it adds after a text; None: ``special.end``.
        padding_side: left for generation with a decoder-only model.
        model_max_length: maximum number of input tokens of the model.
        has_token_types: whether the model distinguishes the two texts of a pair, so that ``AutoTokenizer`` returns
            token types.

    Raises:
        RunError: a file cannot be written.
    """
    special = tokenizer.special
    backend = tokenizers.Tokenizer.from_str(tokenizer._backend.to_str())
    before = [(_name(backend, i), i) for i in (special.begin if begin is None else begin)]
    after = [(_name(backend, i), i) for i in (special.end if end is None else end)]
    between = [(_name(backend, i), i) for i in special.separator]
    opening, middle, closing = ([name for name, _ in tokens] for tokens in (before, between, after))
    backend.post_processor = processors.TemplateProcessing(
        single=[*opening, "$A", *closing],
        pair=[*opening, "$A", *middle, "$B:1", *(f"{name}:1" for name in closing)],
        special_tokens=[*dict(before + between + after).items()],
    )
    ids = {name: getattr(special, name.removesuffix("_token"), None) for name in NAMES}
    names = {name: _name(backend, i) for name, i in ids.items() if i is not None}
    if before:
        names["cls_token"] = before[0][0]
    settings = {
        # PreTrainedTokenizerFast uses tokenizer.json unchanged; the classes of the families rebuild parts of it.
        "tokenizer_class": "PreTrainedTokenizerFast" if tokenizer.sentencepiece is None else "MarianTokenizer",
        "model_input_names": ["input_ids", *(["token_type_ids"] if has_token_types else []), "attention_mask"],
        "padding_side": padding_side,
        "model_max_length": model_max_length,
        "clean_up_tokenization_spaces": False,
        **names,
        **({"chat_template": special.chat_template} if special.chat_template else {}),
        "triptych": replace(special, chat_template="").to_dict(),
    }
    if tokenizer.sentencepiece is None:
        write_text(folder / "tokenizer.json", backend.to_str(pretty=True))
    else:
        for name, content in zip(("source.spm", "target.spm"), tokenizer.sentencepiece, strict=True):
            with replacing(folder / name) as temporary:
                temporary.write_bytes(content)
        write_text(folder / "vocab.json", json.dumps(backend.get_vocab(), indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "tokenizer_config.json", json.dumps(settings, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "special_tokens_map.json", json.dumps(names, indent=2, ensure_ascii=False) + "\n")


@dataclass(frozen=True)
class _Family:
    """Defaults of a tokenizer class, which its folder may omit.

    Attributes:
        names: special tokens by role, used if the vocabulary contains them.
        begin: role of the token before a text; None: no token.
        end: role of the token after a text; None: no token.
        start: role of the first input token of the decoder of the full model.
        between: roles of the tokens between the two texts of a pair; (): only sep.
    """

    names: Mapping[str, str]
    begin: str | None = None
    end: str | None = None
    start: str = "bos_token"
    between: tuple[str, ...] = ()


_BERT = {name: f"[{name.removesuffix('_token').upper()}]" for name in NAMES[2:]}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_ROBERTA = {**_T5, "bos_token": "<s>", "cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
_FAMILIES = {
    "bert": _Family(_BERT, begin="cls_token", end="sep_token"),
    "roberta": _Family(_ROBERTA, begin="cls_token", end="sep_token", between=("sep_token",) * 2),
    "bart": _Family(_ROBERTA, begin="cls_token", end="sep_token", start="eos_token", between=("sep_token",) * 2),
    "longformer": _Family(_ROBERTA, begin="cls_token", end="sep_token", between=("sep_token",) * 2),
    "whisper": _Family(dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"), end="eos_token"),
    "gpt2": _Family(dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")),
    "t5": _Family(_T5, end="eos_token", start="pad_token"),
    "marian": _Family(_T5, end="eos_token", start="pad_token"),
    "pegasus": _Family({**_T5, "mask_token": "<mask_2>"}, end="eos_token", start="pad_token"),
    "llama": _Family({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}, begin="bos_token"),
}
_SPLIT_OTHERWISE = ("qwen3", "olmo2", "clip")
"""Families that split words differently from GPT-2, which byte-pair files alone do not specify."""


@dataclass(frozen=True)
class _TokenizerFiles:
    """The content of a folder, except for the vocabulary.

    Attributes:
        path: path of the vocabulary.
        tokenizer: ``tokenizer_config.json``; for older folders updated with ``special_tokens_map.json``.
        added: ids of the tokens in ``added_tokens.json``.
        model: ``config.json``.
        family: defaults of the tokenizer class.
    """

    path: Path
    tokenizer: dict[str, Any]
    added: dict[str, Any]
    model: dict[str, Any]
    family: _Family

    @classmethod
    def read(cls, folder: Path) -> "_TokenizerFiles":
        path = _vocabulary(folder)
        config, names, added, model = (
            _read_object(folder / f"{name}.json")
            for name in ("tokenizer_config", "special_tokens_map", "added_tokens", "config")
        )
        kind = str(config.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer").lower()
        known = [k for k in (kind, str(model.get("model_type")), _FORMATS[path.name].family) if k in _FAMILIES]
        said = config if "added_tokens_decoder" in config else {**config, **names}
        return cls(path, said, added, model, _FAMILIES[known[0]] if known else _Family({}))

    def model_id(self, key: str) -> int | None:
        """Returns the id of a token in ``config.json``, the first of a list; None if it is not set."""
        value = self.model.get(key)
        i = value[0] if isinstance(value, list) and value else value
        return i if isinstance(i, int) and i >= 0 else None

    def token(self, said: Any) -> AddedToken:
        """Parses a token, which is a text, or an object with text and flags."""
        try:
            if isinstance(said, str):
                return AddedToken(said, normalized=False)
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            return AddedToken(said["content"], **{flag: said[flag] for flag in flags if flag in said})
        except (KeyError, TypeError):
            raise ValueError(f"{self.path.parent / 'tokenizer_config.json'}: {said!r} is not a token") from None


def _vocabulary(folder: Path) -> Path:
    """Returns the file of the vocabulary."""
    sets = [(name, *kind.others) for name, kind in _FORMATS.items()]
    for files in sets:
        if all((folder / name).is_file() for name in files):
            return folder / files[0]
    raise ValueError(f"{folder}: no tokenizer; looked for {', '.join(map(' with '.join, sets))}")


def _read_object(path: Path) -> dict[str, Any]:
    """Reads the object in a JSON file; an empty one if the file does not exist."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {error.lineno}: not JSON ({error.msg})") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected an object, got {type(content).__name__}")
    return content


def _from_json(settings: _TokenizerFiles) -> tokenizers.Tokenizer:
    state = _read_object(settings.path)
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    for token in state["added_tokens"]:
        if backend.token_to_id(token["content"]) != token["id"]:  # the library may assign another id
            raise ValueError(f"{settings.path}: added token {token['content']!r} cannot have id {token['id']}")
    return backend


def _word_pieces(settings: _TokenizerFiles) -> tokenizers.Tokenizer:
    """BERT's tokenizer (Devlin et al. 2019)."""
    vocabulary: dict[str, int] = {}
    for i, token in enumerate(read_lines(settings.path)):
        if vocabulary.setdefault(token, i) != i:
            raise ValueError(f"{settings.path}, line {i + 1}: {token!r} is a duplicate of line {vocabulary[token] + 1}")
    unk = settings.token(settings.tokenizer.get("unk_token") or "[UNK]").content
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unk))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=settings.tokenizer.get("do_lower_case", True),
        strip_accents=settings.tokenizer.get("strip_accents"),
        handle_chinese_chars=settings.tokenizer.get("tokenize_chinese_chars", True),
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _byte_pairs(settings: _TokenizerFiles) -> tokenizers.Tokenizer:
    """GPT-2's tokenizer (Radford et al. 2019, section 2.2)."""
    if settings.model.get("model_type") in _SPLIT_OTHERWISE:
        raise ValueError(f"{settings.path}: expected tokenizer.json, since this family does not split like GPT-2")
    vocabulary, path = _read_object(settings.path), settings.path.with_name("merges.txt")
    merges = []
    for number, line in enumerate(read_lines(path), 1):
        if line.startswith("#version") and number == 1:
            continue
        left, _, right = line.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise ValueError(f"{path}, line {number}: {line!r} is not a pair of tokens that form a token")
        merges.append((left, right))
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges))
    add_prefix_space = settings.tokenizer.get("add_prefix_space", False)
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(settings: _TokenizerFiles) -> tokenizers.Tokenizer:
    """The tokenizers of T5, Pegasus and LLaMA. The files of the first two lack some tokens."""
    model = SentencePieceModel.read(settings.path)
    pieces = model.pieces
    if settings.family is _FAMILIES["t5"]:
        hidden = [f"<extra_id_{i}>" for i in range(settings.tokenizer.get("extra_ids", 100))]
        pieces = [*pieces, *(Piece(text, kind=Kind.CONTROL) for text in reversed(hidden))]
    elif settings.family is _FAMILIES["pegasus"]:  # after <pad> and </s>
        hidden = ["<mask_1>", "<mask_2>", *(f"<unk_{i}>" for i in range(2, 103))]
        pieces = [*pieces[:2], *(Piece(text, kind=Kind.CONTROL) for text in hidden), *pieces[2:]]
    return replace(model, pieces=pieces).backend()


def _marian(settings: _TokenizerFiles) -> tokenizers.Tokenizer:
    """MarianMT's tokenizer (Junczys-Dowmunt et al. 2018): a vocabulary for the pieces of two SentencePiece models."""
    if settings.tokenizer.get("separate_vocabs"):
        raise ValueError(f"{settings.path.parent}: separate_vocabs is not supported; expected a shared vocabulary")
    for name in ("source.spm", "target.spm"):  # are they complete?
        SentencePieceModel.read(settings.path.with_name(name))
    vocabulary = _read_object(settings.path.with_name("vocab.json"))
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.decoder = decoder()
    return backend


class _Format(NamedTuple):
    """A format of vocabularies.

    Attributes:
        read: reads it.
        family: of the tokenizer, if no other file says it; empty: unknown.
        others: further files that it needs.
    """

    read: Callable[[_TokenizerFiles], tokenizers.Tokenizer]
    family: str = ""
    others: tuple[str, ...] = ()


_FORMATS = {
    "tokenizer.json": _Format(_from_json),
    "vocab.txt": _Format(_word_pieces, "bert"),
    "vocab.json": _Format(_byte_pairs, "gpt2", ("merges.txt",)),
    "spiece.model": _Format(_sentencepiece, "t5"),
    "tokenizer.model": _Format(_sentencepiece, "llama"),
    "source.spm": _Format(_marian, "marian", ("target.spm", "vocab.json")),
}
"""By the file of the vocabulary; the first that is complete is read."""


def _add_tokens(backend: tokenizers.Tokenizer, settings: _TokenizerFiles) -> dict[str, int]:
    """Adds the tokens that the vocabulary lacks, and marks special tokens as such.

    Returns:
        The id of each special token that has a role.
    """
    said, folder = settings.tokenizer, settings.path.parent
    added = {int(i): token for i, token in said.get("added_tokens_decoder", {}).items()}
    added |= {i: text for text, i in settings.added.items()}
    for i in sorted(added):
        if _add(backend, settings.token(added[i])) != i:
            raise ValueError(f"{folder}: added token {added[i]!r} cannot have id {i}")
    roles = {}
    for role in NAMES:
        default = settings.family.names.get(role)
        if default is None or backend.token_to_id(default) is None:
            default_id = settings.model_id(f"{role}_id")
            default = None if default_id is None else backend.id_to_token(default_id)
        name = said.get(role, default)
        if name is not None:
            roles[role] = _add(backend, settings.token(name), special=True)
    for key in ("additional_special_tokens", "extra_special_tokens"):
        others = said.get(key) or []
        for other in others.values() if isinstance(others, dict) else others:
            _add(backend, settings.token(other), special=True)
    return roles


def _add(backend: tokenizers.Tokenizer, token: AddedToken, special: bool = False) -> int:
    """Adds a token, or marks an existing one as special; returns its id."""
    known = {known.content: known for known in backend.get_added_tokens_decoder().values()}
    token = known.get(token.content, token)
    token.special = token.special or special
    backend.add_tokens([token])
    i = backend.token_to_id(token.content)
    assert i is not None
    return i


def _special_tokens(backend: tokenizers.Tokenizer, settings: _TokenizerFiles, roles: dict[str, int]) -> SpecialTokens:
    folder, said, family = settings.path.parent, settings.tokenizer, settings.family
    if "triptych" in said:
        special = SpecialTokens.from_dict(said["triptych"])
        for i in sorted(special.ids):
            if backend.id_to_token(i) is None:
                raise ValueError(f"{folder / 'tokenizer_config.json'}: triptych: no token has id {i}")
        return special
    eos = roles.get("eos_token", roles.get("sep_token"))
    if eos is None:
        raise ValueError(f"{folder}: tokenizer_config.json names neither eos_token nor sep_token")
    bos = roles.get("bos_token", roles.get("cls_token", eos))
    unk = roles["unk_token"] if "unk_token" in roles else _unknown(backend)
    if settings.path.name == "tokenizer.json":
        begin, end, between = _surroundings(backend, settings.path, eos)
    else:
        has_begin = said.get("add_bos_token", family.begin is not None)
        has_end = said.get("add_eos_token", family.end is not None)
        begin = (roles.get(family.begin or "", bos),) if has_begin else ()
        end = (roles.get(family.end or "", eos),) if has_end else ()
        between = tuple(roles.get(role, eos) for role in family.between)
    start = settings.model_id("decoder_start_token_id")
    if start is not None and backend.id_to_token(start) is None:
        raise ValueError(f"{folder / 'config.json'}: decoder_start_token_id={start}: the tokenizer has no such token")
    is_full = settings.model.get("is_encoder_decoder", family.start != "bos_token")
    hidden = {token: i for token, i in backend.get_vocab().items() if re.fullmatch(r"<extra_id_\d+>", token)}
    sep = roles.get("sep_token", eos)
    return SpecialTokens(
        bos=bos,
        eos=eos,
        sep=sep,
        start=roles.get(family.start, bos) if start is None else start,
        pad=roles.get("pad_token", eos),
        unk=None if unk in (bos, eos) else unk,  # GPT-2 covers all bytes
        mask=roles.get("mask_token"),
        begin=begin,
        end=end,
        between=() if between == (sep,) else between,
        # labels are encoded like other texts, except that Whisper's decoder starts with the first begin token
        target_begin=() if not is_full else begin[1:] if family is _FAMILIES["whisper"] else begin,
        sentinels=tuple(hidden[token] for token in sorted(hidden, key=lambda token: int(token[10:-1]))),
    )


def _check_model(
    backend: tokenizers.Tokenizer, settings: _TokenizerFiles, special: SpecialTokens, roles: Mapping[str, int]
) -> None:
    """Checks that the pad and eos tokens of the tokenizer and the model are the same, if both define them. Classifiers
    of ``transformers`` use these ids to find the end of a text."""
    for role, i in (("pad_token", special.pad), ("eos_token", special.eos)):
        said = settings.model.get(f"{role}_id")
        ids = [other for other in (said if isinstance(said, list) else [said]) if isinstance(other, int) and other >= 0]
        if role in roles and ids and i not in ids:
            raise ValueError(
                f"{settings.path.parent / 'config.json'}: {role}_id={said}, but {role} of the tokenizer "
                f"({settings.path.name}, tokenizer_config.json) is {_name(backend, i)!r} with id {i}"
            )
    if settings.model.get("model_type") == "clip":  # it pools the text at this token
        said = settings.model.get("text_config", {}).get("eos_token_id", 49407)
        end = backend.get_vocab_size() - 1 if said == 2 else said  # 2 was an error: such models pool at the largest id
        if special.end[-1:] != (end,):
            raise ValueError(
                f"{settings.path.parent / 'config.json'}: text_config: eos_token_id={said}: expected token {end} "
                f"after each text, but the tokenizer ({settings.path.name}) adds {list(special.end)}"
            )


def _unknown(backend: tokenizers.Tokenizer) -> int | None:
    """Returns the unknown token of the model itself."""
    model = json.loads(backend.to_str())["model"]
    name, i = model.get("unk_token"), model.get("unk_id")
    return i if name is None else backend.token_to_id(name)


def _surroundings(backend: tokenizers.Tokenizer, path: Path, eos: int) -> tuple[tuple[int, ...], ...]:
    """Returns the tokens that a tokenizer adds before a text, after it, and between two, found by encoding texts of one
    token."""
    name = _name(backend, eos)
    encoding, pair = backend.encode(name), backend.encode(name, name)
    for token, i in zip(encoding.tokens, encoding.ids, strict=True):
        if backend.id_to_token(i) != token:
            what = "no" if backend.id_to_token(i) is None else "another"
            raise ValueError(f"{path}: the post-processor adds {token!r} with id {i}, which is {what} token")
    text = encoding.special_tokens_mask.index(0)
    first, second = (i for i, is_special in enumerate(pair.special_tokens_mask) if not is_special)
    return tuple(encoding.ids[:text]), tuple(encoding.ids[text + 1 :]), tuple(pair.ids[first + 1 : second])


def _name(backend: tokenizers.Tokenizer, i: int) -> str:
    name = backend.id_to_token(i)
    if name is None:
        raise ValueError(f"the tokenizer has no token with id {i}")
    return name


def keep_out_of_text(backend: tokenizers.Tokenizer) -> None:
    """Prevents text from becoming special tokens.

    ``encode_special_tokens`` is not enough if the model's vocabulary contains special tokens, such as "</s>" in T5.
    These are split after their first character wherever they occur in a text.
    """
    vocabulary = backend.get_vocab(with_added_tokens=False)
    words = []
    for token in backend.get_added_tokens_decoder().values():
        name = token.content
        if token.special and len(name) > 1 and name in vocabulary:
            is_word = vocabulary[name] in [piece.id for piece in backend.model.tokenize(name)]
            # an unknown token is like any word
            is_unknown = isinstance(backend.model, models.WordLevel) and name == backend.model.unk_token
            if is_word and not is_unknown and any(name in part for part in _parts(backend, name)):
                words.append(name)
    if words:
        places = "|".join(f"{re.escape(name[0])}(?={re.escape(name[1:])})" for name in words)
        cut = pre_tokenizers.Split(Regex(places), "merged_with_previous")
        before = backend.pre_tokenizer
        backend.pre_tokenizer = cut if before is None else pre_tokenizers.Sequence([before, cut])


def _parts(backend: tokenizers.Tokenizer, text: str) -> list[str]:
    """Returns the parts of a text that the model tokenizes separately."""
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    if backend.pre_tokenizer is None:
        return [text]
    return [part for part, _ in backend.pre_tokenizer.pre_tokenize_str(text)]

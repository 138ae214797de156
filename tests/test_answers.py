"""What newcomers type, and the answer that each command gets: a line that names the key, the value, what was expected
and the nearest that there is; before torch is imported where that can be, and before data is read everywhere."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from cases import by_day
from commands import run
from one_process import Answer, answers_to
from triptych.config.diagnose import SCHEMAS, keys_of
from triptych.config.terms import REMARKS, THEIR_KEYS

# A command, and after -> what its answer must say, the pieces with | between them. Those with ~ in front run in
# `make nightly`: the others reach every line of the checks that all reach together.
# E is experiment=dates/translation, P is task=translation model=full data=parallel_text data.dir=. ,
# T is task=classification model=encoder_only data=labelled_text data.dir=. data.train=pairs.tsv ,
# H is task=classification model=encoder_only data=hub data.name=x .
BEFORE_TORCH = """
# commands, and what is no key=value
trian E  ->  triptych trian | did you mean train?
~ train dates/translation  ->  dates/translation | did you mean experiment=dates/translation?
train conf/experiment/dates/translation.yaml  ->  did you mean experiment=dates/translation?
train experiment dates/translation  ->  did you mean experiment=dates/translation?
train experiment = dates/translation  ->  without spaces, experiment=dates/translation
train experiment:dates/translation  ->  did you mean experiment=dates/translation?
~ train E seed 3  ->  did you mean seed=3?
train E seed= 3  ->  without spaces, seed=3
train E debug  ->  debug=fast
~ train E --lr 0.1  ->  --lr | did you mean optimizer.lr?
train E --seed=3  ->  --seed | did you mean seed=3?
train E --checkpoint x  ->  --checkpoint | did you mean resume | init_from
~ train E --dry-run  ->  debug=fast | triptych doctor
~ train E --config x  ->  did you mean experiment?
train E callbacks=[default, ema]  ->  callbacks=[default, ema] | without spaces
train --config-name=x  ->  --config-dir
train --config-dir=nowhere E  ->  nowhere: no such folder | experiment/NAME.yaml
~ evaluate x  ->  did you mean checkpoint=x?
evaluate --checkpoint x  ->  did you mean checkpoint=x?
predict x  ->  did you mean checkpoint=x?
~ predict 'checkpoint=runs/lr=0.1,seed=1' input=x  ->  needs quotes: 'checkpoint="runs/lr=0.1,seed=1"'
train E 'run_dir=a(1)'  ->  needs quotes: 'run_dir="a(1)"'
~ train E 'run_dir=a,b'  ->  -m | needs quotes: 'run_dir="a,b"'
predict 'input=<(echo a)'  ->  input=<(echo a) | quotes

# nothing, or too much, is chosen
~ train  ->  nothing to train | experiment=NAME | experiment=dates/translation | task=
~ train model=decoder_only  ->  nothing to train | experiment=NAME
~ train -m seed=1,2  ->  nothing to train | experiment=NAME
doctor  ->  nothing to train | experiment=NAME
train E seed=1,2  ->  -m
~ train E data.languages=de,en  ->  -m | [a,b]
~ train E ~logger  ->  ~logger | csv, tensorboard, wandb
train E ~optimizer  ->  ~optimizer | adamw
~ train E ~trainer.max_steps  ->  trainer.max_steps | expected a whole number

# choices of groups
~ train experiment=dates/translatoin  ->  dates/translatoin | did you mean dates/translation?
train experiment=dates.translation_full  ->  did you mean dates/translation?
~ train experiment=nowhere/x  ->  nowhere/x | dates/... (9) | wikitext2
~ train model=ful  ->  model=ful | did you mean full?
~ train E model=bert  ->  model=bert | bert/base
~ train E model=bert-base  ->  model=bert-base: there is no such choice; did you mean bert/base?
train E model=embedding/tokens  ->  model=embedding/tokens: there is no such choice; expected one of bart/...
~ train E model=gpt2  ->  did you mean gpt2/small?
~ train E model=gpt3-13b  ->  did you mean gpt3/13b?
~ train E model=gpt3-1.3b  ->  did you mean gpt3/1.3b?
~ train E model=facebook/bart-base  ->  did you mean bart/base?
~ train E model=nothing  ->  bert/... (7) | decoder_only | t5/... (12)
train E model/bert=base  ->  model/bert=base | did you mean model=bert/base?
~ train E model=t5  ->  model=t5 | did you mean t5/11b
~ train E model=gpt  ->  model=gpt | gpt2
~ train E model=encoder_decoder  ->  did you mean full?
~ train E model=decoder-only  ->  did you mean decoder_only?
~ train E task=lm  ->  task=lm | did you mean language_modeling?
~ train E task=sentiment  ->  did you mean classification?
~ train E data=TaggedText  ->  data=TaggedText | did you mean tagged_text?
~ train E data=nowhere  ->  data=nowhere | parallel_text
~ train E tokenizer=sentencepiece  ->  did you mean unigram?
~ train E optimizer=adam  ->  did you mean adamw?
~ train E logger=tb  ->  logger=tb | did you mean tensorboard?
~ train E logger=null  ->  logger=null | did you mean csv?
~ train E logger=none  ->  did you mean csv?
~ train E logger=false  ->  logger=false | did you mean csv?
~ train E logger=wandb,csv  ->  [a,b]
train E scheduler=null  ->  scheduler=null | cosine
~ train E debug=true  ->  debug=true | did you mean fast?
~ train E shape=large  ->  base, ladder/16 | small, tiny
~ train E callbacks=[default,emaa]  ->  emaa | did you mean ema?
~ train -m E hydra/launcher=submitit_slurm  ->  hydra/launcher=submitit_slurm | did you mean slurm?
train E hydra/launcher=slurm  ->  add -m
~ train -m E hydra.launcher.gpu=1 seed=1,2  ->  did you mean hydra.launcher.gpus_per_node (hydra/launcher=slurm)?
~ train -m E hydra.launcher.walltime=60  ->  did you mean hydra.launcher.timeout_min (hydra/launcher=slurm)?
train -m E hydra.launcher.workers=3  ->  did you mean hydra.launcher.n_jobs
train -m E model=[full,encoder_only]  ->  model=[full,encoder_only]: expected one choice | -m model=full,encoder_only
~ train E 'optimizer=[adamw,muon]'  ->  such as optimizer=adamw | -m optimizer=adamw,muon

# keys, by other people's names
train E experiments=dates/translation  ->  experiments | did you mean experiment?
~ train E lr=0.1  ->  lr: there is no such key | optimizer.lr
train E optimizer.momentum=0.9  ->  optimizer.momentum: there is no such key; optimizer=muon and sgd have it
~ train experiment=dates/classification task.z_loss=1e-4  ->  language_modeling, text_to_text and translation have it
~ train E optimizer.learning_rate=1  ->  optimizer.learning_rate | did you mean optimizer.lr?
~ train E batch_size=3  ->  batch_size | did you mean batch.global_size?
~ train E train.batch_size=3  ->  did you mean batch.global_size?
~ train E per_device_train_batch_size=3  ->  did you mean batch.global_size?
~ train E gradient_accumulation_steps=2  ->  did you mean trainer.accumulate_grad_batches?
~ train E epochs=3  ->  epochs | did you mean trainer.max_steps | set in steps
~ train E num_train_epochs=3  ->  did you mean trainer.max_steps
~ train E max_steps=3  ->  did you mean trainer.max_steps?
~ train E trainer.gpus=2  ->  trainer.gpus | trainer.devices | trainer=ddp
~ train E device=cuda  ->  did you mean trainer.accelerator
~ train E precision=bf16  ->  did you mean trainer.precision
~ train E fp16=true  ->  did you mean trainer.precision | bf16-mixed
~ train E ckpt_path=x  ->  ckpt_path | did you mean resume | init_from
~ train E resume_from_checkpoint=x  ->  did you mean resume
~ train E output_dir=x  ->  did you mean run_dir?
~ train E wandb=off  ->  logger=csv
~ train E position=rope  ->  position | did you mean block/position
~ train E model.d_model=64  ->  model.d_model | did you mean shape.d_model?
~ train E model.num_layers=2  ->  model.num_layers | did you mean shape.num_layers?
~ train E model.dropout=0.1  ->  did you mean block.dropout?
~ train E model.decoder.layers=2  ->  did you mean model.decoder.num_layers?
~ train E hidden_size=64  ->  did you mean shape.d_model?
~ train E d_model=64  ->  did you mean shape.d_model?
~ train E shape.d_modl=64  ->  shape.d_modl | did you mean shape.d_model?
~ train E +shap=1  ->  did you mean shape?
train E +shape.foo=1  ->  shape.foo | d_model
~ train E trainer.max_step=5  ->  did you mean trainer.max_steps?
~ train E warmup_steps=10  ->  did you mean scheduler.warmup_steps?
~ train E eval_steps=10  ->  did you mean trainer.val_check_interval?
~ train E data_dir=x  ->  did you mean data | data.dir=FOLDER
~ train E data.batch_size=3  ->  did you mean batch.global_size?
~ evaluate ckpt_path=x  ->  did you mean checkpoint?
evaluate run_dir=x  ->  did you mean checkpoint?
~ predict checkpoint=x beams=4  ->  did you mean num_beams?

# what is Hydra's or Lightning's, and is done in another way here
~ train E trainer.max_epochs=3  ->  trainer.max_epochs | trainer.max_steps | set in steps
train E +trainer.limit_val_batches=1  ->  trainer.limit_val_batches exists: drop the +
train E +trainer.max_epochs=3  ->  trainer.max_epochs=3 | trainer.max_steps=N
~ train E +trainer.fast_dev_run=true  ->  debug=fast
train E hydra.run.dir=x  ->  hydra.run.dir=x | run_dir=
train E hydra.job.chdir=true  ->  hydra.job.chdir | run_dir

# values
~ train E shape.num_layers=abc  ->  shape.num_layers=abc: expected a whole number
train E shape.d_model=1.5  ->  shape.d_model=1.5: expected a whole number
~ train E seed=null  ->  seed=null: expected a whole number
train E seed=-1  ->  seed=-1
train E compile=perhaps  ->  compile=perhaps | true, false
train E shape.num_heads=0  ->  shape.num_heads=0 | at least 1
~ train E block/position=rope  ->  block/position=rope | did you mean rotary?
~ train E block/position=rotery  ->  did you mean rotary?
~ train E block/position=null  ->  block/position=null | did you mean none?
~ train E block.position=rope  ->  block.position=rope | did you mean block/position=rotary?
train E block.norm=rms_norm  ->  block.norm=rms_norm | did you mean block/norm=rms_norm?
train E model.decoder.position=rotary  ->  block/position@model.decoder.position=rotary
train E block/position@decoder=rotary  ->  decoder has no parts | block/position@model.decoder.position
train E model.decoder.block/position=rotary  ->  did you mean block/position@model.decoder.position=rotary?
train E block/position=[rotary,learned]  ->  expected one part, such as block/position=rotary
~ train E ~block/norm  ->  ~block/norm: required by every run; expected one of | rms
train E block=rotary  ->  block is a node with settings; expected one of block.position
~ train E block/feed_forward=swiglu  ->  did you mean gated_mlp?
~ train E block/attention=gqa  ->  did you mean multi_head?
~ train E block.rope_theta=5  ->  did you mean block.position.theta (block/position=rotary has it)
train E model.decoder.rope_theta=5  ->  model.decoder.position.theta (block/position@model.decoder.position=rotary
~ train E block.relative_buckets=5  ->  did you mean block.position.num_buckets (block/position=relative_bias has it)
train E block.first_position=2  ->  did you mean block.position.first?
~ train E block.attention_dropout=0.1  ->  did you mean block.attention.dropout?
~ train E model.decoder.feed_forward_dropout=0.1  ->  did you mean model.decoder.feed_forward.dropout?
~ train E model.decoder.gated=true  ->  block/feed_forward@model.decoder.feed_forward=gated_mlp
~ train E block.norm_eps=1e-6  ->  did you mean block.norm.eps?
~ train E block.norm_position=post  ->  did you mean block/residual
~ train E block.gated=true  ->  did you mean block/feed_forward | block/feed_forward=gated_mlp
~ train E block.head_dim=8  ->  did you mean shape.head_dim?
~ train E block.num_kv_heads=2  ->  did you mean block.attention.num_kv_heads?
~ train E block.position.theta=5  ->  block.position.theta | block/position=rotary has it
train E model.decoder.position.theta=5  ->  block/position@model.decoder.position=rotary has it
train E block/position=rotary block.position.thata=5  ->  did you mean block.position.theta?
train E block.attention.dropout=2  ->  block.attention.dropout=2 | less than 1
~ train E head=bert  ->  did you mean head@heads.tokens=bert?
train E heads.tags=linear  ->  did you mean head@heads.tags=linear?
~ train E head@heads.tokens=berd  ->  head=berd | did you mean bert?
~ train E block.dropout=1.5  ->  block.dropout=1.5 | less than 1
train E test_weights=first  ->  test_weights=first | last, best
~ train E match=flops  ->  match=flops | did you mean train_flops?
train E batch.global_size=10 trainer.accumulate_grad_batches=3  ->  batch.global_size=10 | accumulate_grad_batches=3
train E batch.num_workers=-1  ->  batch.num_workers=-1
~ train E trainer.gradient_clip_val=abc  ->  trainer.gradient_clip_val=abc: expected a number or null
train E trainer.limit_val_batches=0  ->  trainer.limit_val_batches=0: expected a number of batches
~ train E trainer.limit_test_batches=0.0  ->  trainer.limit_test_batches=0.0: expected
train E trainer.gradient_clip_val=-1  ->  trainer.gradient_clip_val=-1 | more than 0
train E trainer.log_every_n_steps=0  ->  trainer.log_every_n_steps=0 | at least 1
~ train E trainer.limit_val_batches=-1  ->  trainer.limit_val_batches=-1
~ train E trainer.val_check_interval=abc  ->  trainer.val_check_interval=abc: expected a number
train E trainer.accelerator=tpu  ->  trainer.accelerator=tpu | cpu, gpu
train E test_weights=best trainer.max_steps=3  ->  test_weights=best | trainer.val_check_interval
train E data._target_=mine.Corpus  ->  data._target_=mine.Corpus | TRIPTYCH_ALLOW= | PYTHONPATH=
~ train H data.split_names.validation=0.1  ->  data.split_names is a list; expected data.split_names=[train,v
~ train -m H data.split_names.validation=0.1 seed=1,2  ->  expected data.split_names=[train,validation,test]
~ doctor H +data.split_names.test.share=0.1  ->  data.split_names is a list; expected data.split_names=[train,v
train H data.split_names.7=0.1  ->  data.split_names is a list; expected data.split_names=[train,validation,test]
~ train P 'data.train=[train.en,train.de]' data.train.en=x  ->  data.train is a list; expected data.train=[train.en,
~ train H data.split_names.1=null data.split_names.0=en data.split_names.x=1  ->  expected data.split_names=[en,null,
~ doctor E model=clip/vit-b-32 image_embedding.image_size.height=28  ->  expected image_embedding.image_size=[224,224]
~ doctor E device=a100  ->  device=a100 | a100-40gb, a100-80gb
doctor E device=h1000  ->  did you mean h100?

# files and folders
train E run_dir=/proc/x  ->  run_dir=/proc/x | is not writable
~ train T data.dir=/nowhere  ->  data.dir=/nowhere: no such folder
train E init_from=bert-base-uncased  ->  init_from=bert-base-uncased: no such file | a run directory
train E resume=nowhere  ->  resume=nowhere: no such file | auto
evaluate  ->  checkpoint=RUN
~ evaluate checkpoint=  ->  checkpoint=RUN
~ evaluate checkpoint=nowhere  ->  checkpoint=nowhere: no such file
~ predict  ->  checkpoint=RUN
predict checkpoint=bad.ckpt batch_size=0  ->  batch_size=0
predict checkpoint=bad.ckpt input=nothing.txt  ->  input=nothing.txt: no such file
predict checkpoint=bad.ckpt output=/proc/x  ->  output=/proc/x | is not writable
~ export nowhere --output x  ->  checkpoint=nowhere: no such file
export bad.ckpt --output /proc/x  ->  --output=/proc/x | is not writable
import nowhere --output x  ->  nowhere: no such folder
~ compare . --output /proc/x.html  ->  --output=/proc/x.html | is not writable
~ compare . --output x.pdf  ->  --output x.pdf | an HTML page | did you mean --output x.html?
compare . --output .  ->  --output .: | an HTML page | did you mean --output report.html?
dashboard . --output x.html  ->  --output x.html | Python code | did you mean --output x.py?
"""

BEFORE_DATA = """
train E +block.position.theta=5  ->  block.position.theta: SinusoidalPositions has no such setting | first
~ train E block.position.first=-3  ->  block.position.first=-3: expected at least 0
~ train E block/position=relative_bias block.position.num_buckets=3  ->  num_buckets=3: expected at least 4
~ train E block/position=relative_bias block.position.max_distance=8  ->  max_distance=8: expected more than 8
~ train E block/position=rotary block.position.scaling=2  ->  block.position.scaling=2: expected RopeScaling or null
~ train E block/position=rotary +block.position.scaling.factor=2  ->  block.position.scaling | expected RopeScaling
train E model.decoder.norm=true  ->  model.decoder.norm=true: expected a part chosen by its config group
train E +block.residual.foo=true  ->  block.residual.foo: PreNorm has no such setting, and no other
~ train E 'heads.tokens.norm=${block.norm}'  ->  norm: the norm follows the transform
~ train E block/position=rotary block.position.theta=-1  ->  block.position.theta=-1.0: expected more than 0
~ train E block.attention.scale=0  ->  block.attention.scale=0.0: expected more than 0
~ train E block.attention.sliding_windows=[]  ->  block.attention.sliding_windows=[]: expected numbers of at least 1
~ train E W=[0,null]  ->  block.attention.sliding_windows=[0, null]: expected numbers of at least 1
~ train E block/attention=longformer W=[64,null]  ->  =[64,null]: expected a list of whole numbers
train E W=64  ->  sliding_windows=64: expected a list of whole numbers and nulls or null | [64]
~ train E block/attention=performer block/position=alibi  ->  block/position=alibi adds | but block/attention=performer
~ train E model=decoder_only block/attention=linformer block/position=rotary  ->  only in the encoder of model=full
~ train E task.z_loss=-1  ->  task.z_loss=-1.0: expected at least 0
~ train E task.max_new_tokens=0  ->  task.max_new_tokens=0: expected at least 1
~ train E task.label_smoothing=1  ->  task.label_smoothing=1.0: expected at least 0 and less than 1
~ train E task.num_beams=0  ->  num_beams=0: expected at least 1
~ train E task.early_stopping=maybe  ->  task.early_stopping=maybe | true, false, never
~ train E task.bleu_tokenizer=31a  ->  task.bleu_tokenizer=31a | 13a
~ train experiment=dates/denoising task.mask_prob=2  ->  task.mask_prob=2.0: expected more than 0 and less than 1
~ train E optimizer=sgd optimizer.momentum=0  ->  optimizer.momentum above 0, or optimizer.nesterov=false
~ train E shape.num_heads=5  ->  shape.num_heads=5 | shape.d_model=64 | 4
~ train E model.decoder.num_layers=0  ->  num_layers=0 | at least 1
~ train E model.encoder.d_model=32  ->  d_model=32 | d_model=64
train E optimizer.lr=nan  ->  optimizer.lr=nan | finite
~ train E optimizer.lr=fast  ->  optimizer.lr=fast: expected a number
train E trainer.precision=fp16  ->  trainer.precision=fp16 | did you mean 16-mixed?
~ train E trainer.strategy=ddp_spawn  ->  trainer.strategy=ddp_spawn | trainer=ddp
train E callbacks=ema  ->  callbacks=[default,...]
train E callbacks.checkpoints.keep_latest=0  ->  callbacks.checkpoints.keep_latest=0 | at least 1
~ train E data.languages=[eng]  ->  data.languages | eng | 'en'
~ train E data.languages=de  ->  data.languages=de: expected a list of texts, such as [de]
~ train E task=language_modeling model=encoder_only  ->  task=language_modeling | model=encoder_only | model=full
train E batch.eval_stride=8  ->  batch.eval_stride=8 | only task=language_modeling
~ train task=transcription model=full  ->  data=dates has no audio | or other data, such as data=audio_files
train E match=params  ->  match=params | full
~ train P data.train=train.en  ->  data.train=train.en: expected two files | [train.en,TARGET]
~ train P data.train=[train.en]  ->  data.train=[train.en]: expected two files
~ train P data.train=[train.en,train.d]  ->  data.train=train.d: no such file | did you mean train.de?
~ train P data.train=[train.en,train.de] task=tagging  ->  task=tagging: data=parallel_text has no words and no tags
train T data.train=nothing.tsv  ->  data.train=nothing.tsv: no such file in data.dir=.
train T tokenizer=pretrained  ->  tokenizer.dir
~ compare nowhere  ->  nowhere
compare .  ->  .
"""

SHORT = {
    "E": "experiment=dates/translation",
    "P": "task=translation model=full data=parallel_text data.dir=.",
    "H": "task=classification model=encoder_only data=hub data.name=x",
    "W=[0,null]": "block.attention.sliding_windows=[0,null]",
    "W=[64,null]": "block.attention.sliding_windows=[64,null]",
    "W=64": "block.attention.sliding_windows=64",
    "T": "task=classification model=encoder_only data=labelled_text data.dir=. data.train=pairs.tsv",
}


def read(table: str) -> dict[str, list[str]]:
    """The commands, as they stand there, and what is said of each."""
    rows = [line.split("  ->  ") for line in table.splitlines() if line and not line.startswith("#")]
    return {command.removeprefix("~ "): words.split(" | ") for command, words in rows}


def arguments_of(command: str) -> list[str]:
    """As a shell would split it."""
    return shlex.split(" ".join(SHORT.get(word, word) for word in command.split(" ")))


WARNINGS = ("learning rate never",)

EARLY, LATE = read(BEFORE_TORCH), read(BEFORE_DATA)
DAY = [command for command in (*EARLY, *LATE) if f"\n~ {command}  ->  " not in BEFORE_TORCH + BEFORE_DATA]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Answer]:
    """To the commands of the tests that are selected."""
    selected = {item.callspec.params.get("command") for item in request.session.items if hasattr(item, "callspec")}
    early, late = ([command for command in table if command in selected] for table in (EARLY, LATE))
    folder = tmp_path_factory.mktemp("answers")
    for name in ("train.en", "train.de"):
        (folder / name).write_text("a b\n" * 20)
    (folder / "pairs.tsv").write_text("text\tlabel\n" + "a\t0\nb\t1\n" * 20)
    (folder / "bad.ckpt").write_text("no checkpoint")
    words = ([arguments_of(command) for command in commands] for commands in (late, early))
    return dict(zip([*early, *late], answers_to(next(words), folder, before_torch=next(words)), strict=True))


@pytest.mark.parametrize("command", by_day([*EARLY, *LATE], DAY))
def test_a_mistake_is_answered(command: str, answers: dict[str, Answer]) -> None:
    status, stderr, happened = answers[command]
    assert (status, happened) == (1, []), stderr
    lines = [line for line in stderr.splitlines() if not any(w in line for w in WARNINGS)]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("error: ")
    assert len(lines[0]) < 450
    for words in {**EARLY, **LATE}[command]:
        assert words in lines[0]


def test_what_others_call_ours_is_there() -> None:
    for name, node in SCHEMAS.items():
        if name != "doctor":
            ConfigStore.instance().store(name=f"{name}_schema", node=node)
    parts = ["block/position=learned", "block/position=rotary", "block/position=relative_bias"]
    ours = {
        "device",
        *(key for part in parts for key in keys_of("train", ("data=parallel_text", part))),
        *keys_of("evaluate", ()),
        *keys_of("predict", ()),
    }
    assert THEIR_KEYS.keys() | REMARKS.keys() <= ours


def test_the_same_from_a_cold_start(tmp_path: Path) -> None:
    """Torch takes longer to import than an answer should."""
    command = [sys.executable, "-X", "importtime", "-m", "triptych", "train", SHORT["E"], "block/position=rope"]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert "did you mean rotary?" in finished.stderr.splitlines()[-1]
    imported = {line.rpartition("|")[2].strip() for line in finished.stderr.splitlines() if "import time" in line}
    assert "omegaconf" in imported
    assert not imported & {"torch", "lightning", "wandb", "transformers"}


def test_a_class_of_ones_own(tmp_path: Path) -> None:
    """What the answer says is enough: the next mistake is one in the class."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("class Corpus:\n    tasks = ('translation',)\n")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path / "own")])
    variables = {"TRIPTYCH_ALLOW": "mine", "PYTHONPATH": path}
    finished = run("train", SHORT["E"], "data._target_=mine.Corpus", cwd=tmp_path, variables=variables)
    assert finished.returncode == 1
    assert "data._target_=mine.Corpus: a corpus needs columns, info" in finished.stderr.splitlines()[-1]


def test_help_may_be_cut(tmp_path: Path) -> None:
    """As by ``triptych --help | head``: its reader has left before it is written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "triptych", "--help"]
    finished = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (finished.returncode, finished.stderr) == (0, "")

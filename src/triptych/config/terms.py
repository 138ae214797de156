"""Names of Triptych's keys and choices in other libraries: Lightning, Hugging Face, PyTorch, nanoGPT, fairseq."""

import difflib
import re
from collections.abc import Collection

THEIR_KEYS = {
    "batch.eval_batch_size": "per_device_eval_batch_size val_batch_size test_batch_size",
    "batch.global_size": "batch_size bs train_batch_size per_device_train_batch_size global_batch_size "
    "micro_batch_size",
    "batch.max_tokens": "batch_tokens tokens_per_batch",
    "batch_size": "bs per_device_eval_batch_size",
    "block.position.first": "first_position",
    "block.position.max_distance": "relative_max_distance relative_attention_max_distance max_distance",
    "block.position.num_buckets": "relative_buckets relative_attention_num_buckets num_buckets",
    "block.position.scaling": "rope_scaling",
    "block.position.partial_rotary_factor": "rotary_pct rope_pct rotary_percent",
    "block.position.local_theta": "local_rope_theta rope_local_base_freq rope_local_theta",
    "block.position.theta": "rope_theta theta rotary_emb_base",
    "block/feed_forward": "feed_forward ffn gated swiglu glu",
    "block/norm": "norm normalization norm_type rms rms_norm rmsnorm layer_norm layernorm",
    "block/position": "position pos_encoding positional_encoding position_embedding_type pos_emb rope_theta "
    "rope_scaling first_position relative_buckets relative_max_distance num_buckets max_distance theta",
    "block/residual": "norm_position norm_first pre_norm prenorm post_norm parallel_attn use_parallel_residual "
    "sandwich_norm",
    "block.attention.dropout": "attention_dropout attn_dropout attn_pdrop attention_probs_dropout_prob",
    "block.attention.num_kv_heads": "num_kv_heads num_key_value_heads n_kv_heads",
    "block.attention.qkv_bias": "qkv_bias attention_bias",
    "block.attention.qk_norm": "qk_norm query_key_norm",
    "block.attention.scale": "qk_scale",
    "block.attention.softcap": "attn_logit_softcapping attn_softcap logit_softcapping soft_cap softcap",
    "block.attention.sliding_windows": "window sliding_window window_size",
    "block.feed_forward.activation": "activation hidden_act activation_function",
    "block.feed_forward.dropout": "feed_forward_dropout activation_dropout",
    "block.norm.eps": "norm_eps layer_norm_eps rms_norm_eps layer_norm_epsilon",
    "callbacks": "early_stopping ema callback",
    "callbacks.checkpoints.every_n_steps": "save_steps save_every save_interval checkpoint_every save_strategy",
    "callbacks.checkpoints.keep_latest": "save_total_limit save_top_k keep_last_n",
    "checkpoint": "ckpt ckpt_path checkpoint_path run run_dir model model_path model_name_or_path experiment resume",
    "compile": "torch_compile",
    "data.dir": "data_dir data_path dataset_path data_folder root path folder",
    "data.train": "train_file train_data train_path trainpref train",
    "data.validation": "validation_file valid_file val_file valid_data eval_file validpref valid",
    "data": "dataset dataset_name corpus data_dir data_path dataset_path data_folder root path folder dir train_file "
    "train_data train_path train validation_file valid_file val_file valid_data eval_file validation test test_file",
    "debug": "dry_run fast_dev_run smoke_test dryrun",
    "device": "gpu gpu_type",
    "experiment": "exp recipe config cfg conf",
    "init_from": "pretrained pretrained_model from_pretrained model_name_or_path load_weights finetune_from",
    "input": "input_file in file text source",
    "logger": "wandb use_wandb wandb_project report_to loggers tensorboard",
    "max_new_tokens": "max_length max_len max_tokens",
    "num_beams": "beam beams beam_size",
    "optimizer": "optim",
    "optimizer.beta1": "adam_beta1 betas adam_betas",
    "optimizer.eps": "adam_epsilon adam_eps",
    "optimizer.lr": "learning_rate max_lr peak_lr base_lr",
    "optimizer.weight_decay": "wd decay",
    "output": "output_file out outfile",
    "resume": "resume_from_checkpoint resume_from ckpt_path ckpt checkpoint checkpoint_path load_checkpoint",
    "run_dir": "output_dir out_dir outdir save_dir log_dir logdir exp_dir experiment_dir run_name",
    "scheduler": "lr_scheduler lr_scheduler_type lr_schedule sched",
    "scheduler.warmup_steps": "warmup num_warmup_steps warmup_ratio warmup_updates warmup_iters",
    "seed": "random_seed manual_seed seed_everything",
    "shape.d_ff": "ffn_dim dim_feedforward intermediate_size mlp_dim d_inner ffn_embed_dim n_inner ff_dim",
    "shape.d_model": "hidden_size hidden_dim n_embd embed_dim embedding_dim emb_dim dim model_dim d_embed width",
    "shape.max_length": "block_size context_length seq_len seq_length max_seq_len max_seq_length n_positions n_ctx "
    "max_position_embeddings max_len context_size max_source_length",
    "shape.num_heads": "n_head n_heads nhead nheads num_attention_heads attention_heads",
    "shape.num_layers": "n_layer n_layers num_hidden_layers depth layers nlayers num_blocks",
    "trainer.accelerator": "device cuda use_cuda use_cpu cpu no_cuda",
    "trainer.accumulate_grad_batches": "gradient_accumulation_steps grad_accum grad_accumulation accumulate_grad "
    "accumulation_steps update_freq accumulate",
    "trainer.devices": "gpus num_gpus n_gpus n_gpu ngpus gpu num_processes world_size nproc_per_node num_devices "
    "tpu_cores",
    "trainer.gradient_clip_val": "grad_clip max_grad_norm clip_grad_norm clip_norm gradient_clip clip",
    "trainer.log_every_n_steps": "logging_steps log_every log_interval log_freq",
    "trainer.max_steps": "epochs epoch num_epochs n_epochs max_epochs min_epochs num_train_epochs max_epoch steps "
    "num_steps n_steps total_steps train_steps training_steps max_iters iterations num_iterations max_update updates "
    "num_steps max_updates",
    "trainer.num_nodes": "nodes nnodes n_nodes",
    "trainer.precision": "fp16 bf16 fp32 amp mixed_precision half dtype torch_dtype use_amp",
    "trainer.val_check_interval": "eval_steps eval_every eval_interval val_interval validate_every "
    "check_val_every_n_epoch validate_interval",
}
"""Other libraries' names, by our key."""

THEIR_CHOICES = {
    "adamw": "adam sgd",
    "bf16-mixed": "bfloat16",
    "16-mixed": "fp16 float16 half amp",
    "32-true": "fp32 float32 float",
    "64-true": "fp64 float64 double",
    "auto": "true yes on last latest",
    "characters": "char chars",
    "constant": "none null false off",
    "csv": "none null false off disabled no",
    "decoder_only": "decoder causal gpt_like autoregressive",
    "encoder_only": "encoder",
    "fast": "true 1 yes on",
    "gated_mlp": "swiglu geglu glu reglu",
    "layer_norm": "ln layernorm",
    "multi_head": "mha gqa mqa multihead",
    "mlp": "ffn feed_forward",
    "post_norm": "after postnorm",
    "prefix_lm": "prefixlm prefix bidirectional non_causal_decoder",
    "pre_norm": "before first prenorm",
    "relative_bias": "t5 bucketed",
    "rms_norm": "rmsnorm",
    "full": "encoder_decoder seq2seq enc_dec vanilla",
    "gelu_tanh": "gelu_new gelu_pytorch_tanh",
    "gpt2/small": "gpt2",
    "gpu": "cuda",
    "inverse_sqrt": "noam invsqrt inverse_square_root",
    "language_modeling": "lm causal_lm clm text_generation generation",
    "labelled_text": "csv tsv glue text_classification",
    "denoising": "mlm masked_lm fill_mask pretraining pretrain",
    "classification": "sentiment text_classification sequence_classification cls",
    "tagging": "ner pos token_classification",
    "question_answering": "qa squad",
    "similarity": "sts regression",
    "tagged_text": "conll conllu conll2003 ner",
    "local": "basic submitit_local",
    "parallel_text": "wmt iwslt opus bitext",
    "transcription": "asr speech speech_recognition ctc stt",
    "audio_files": "audio librispeech common_voice wav speech",
    "chat": "instructions instruction_tuning sft dialogue dialog conversational",
    "conversations": "sharegpt oasst openassistant ultrachat instructions",
    "infilling": "fim fill_in_the_middle code_completion completion",
    "plain_text": "text txt lm wikitext wikitext103",
    "marian/opus-mt": "marian",
    "never": "false no none null off",
    "none": "null false off no",
    "pretrained": "gpt2 bert huggingface hf auto",
    "rotary": "rope",
    "sinusoidal": "sin sine fixed",
    "learned": "absolute learnt",
    "silu": "swish swiglu",
    "relu_squared": "relu2 squared_relu relu_2 sqrelu",
    "source_files": "code source sources github the_stack",
    "tensorboard": "tb",
    "text_to_text": "t2t text2text summarization summarisation summary paraphrase",
    "translation": "mt nmt translate",
    "unigram": "sentencepiece spm",
}
"""Other libraries' names, by our choice."""

THEIR_LAUNCHER_KEYS = {
    "gpus_per_node": "gpu gpus num_gpus gres gpus_per_task",
    "cpus_per_task": "cpu cpus num_cpus cpus_per_node cores",
    "tasks_per_node": "tasks ntasks ntasks_per_node",
    "nodes": "num_nodes",
    "mem_gb": "mem memory mem_per_node mem_per_cpu",
    "timeout_min": "time timeout time_limit walltime",
    "partition": "queue",
    "n_jobs": "jobs num_jobs max_jobs workers n_workers max_workers num_workers",
    "array_parallelism": "parallelism max_parallel",
}
"""Names in sbatch and other launchers, by our launcher option."""

RENAMED_KEYS = {
    "batch.cuts": "batch.bpe_dropout_copies",
    "batch.eval_size": "batch.eval_batch_size",
    "batch.merge_dropout": "batch.bpe_dropout",
    "batch.packed": "batch.packing",
    "batch.size": "batch.global_size",
    "batch.tokens": "batch.max_tokens",
    "block.attention.num_global": "block.attention.num_global_tokens",
    "block.attention.num_rounds": "block.attention.num_hashes",
    "block.attention.reach": "block.attention.bucket_window",
    "block.attention.windows": "block.attention.sliding_windows",
    "block.position.cross": "block.position.rotate_cross_attention",
    "block.position.share": "block.position.partial_rotary_factor",
    "block.tie_output": "block.tie_word_embeddings",
    "callbacks.checkpoints.background": "callbacks.checkpoints.async_save",
    "callbacks.checkpoints.keep": "callbacks.checkpoints.keep_latest",
    "callbacks.spikes": "callbacks.loss_spikes",
    "data.pair": "data.text_pair",
    "data.sound": "data.audio",
    "eval_size": "batch_size",
    "frames": "audio_embedding",
    "model.head.pool": "model.head.pooling",
    "not_finite": "on_nonfinite",
    "patches": "image_embedding",
    "scheduler.min_factor": "scheduler.min_lr_factor",
    "task.constraints": "task.logits_processors",
    "task.draws": "task.copies_per_text",
    "task.mask_share": "task.mask_prob",
    "task.share": "task.fim_rate",
    "task.steps": "task.num_inference_steps",
    "task.suffix_share": "task.fim_spm_rate",
    "task.template": "task.chat_template",
    "task.whole_words": "task.whole_word_masking",
}
"""The keys of Triptych 0.2, and of today."""

RENAMED_CHOICES = {
    "block/feed_forward": {"gated": "gated_mlp", "plain": "mlp"},
    "block/norm": {"layer": "layer_norm", "rms": "rms_norm"},
    "block/position": {"relative": "relative_bias"},
    "block/residual": {
        "post": "post_norm",
        "pre": "pre_norm",
        "res_post": "res_post_norm",
        "sandwich": "sandwich_norm",
    },
    "callbacks": {"new_weights_first": "freeze_pretrained"},
    "model": {"prefix_decoder": "prefix_lm", "two_decoders": "dual_decoder", "two_encoders": "dual_encoder"},
}
"""By group, the choices of Triptych 0.2, and of today."""

RENAMED_COMMANDS = {"get": "download"}


REMARKS = {
    "block/feed_forward": "such as block/feed_forward=gated_mlp block.feed_forward.activation=silu",
    "block/norm": "such as block/norm=rms_norm block.norm.eps=1e-6",
    "block/position": "such as block/position=rotary block.position.theta=5e5",
    "block/residual": "such as block/residual=post_norm",
    "callbacks": "callbacks=[default,ema,early_stopping]",
    "data": "such as data=parallel_text data.dir=FOLDER 'data.train=[a.en,a.de]'",
    "debug": "debug=fast runs five steps; triptych doctor only shows the plan",
    "logger": "logger=csv works without W&B",
    "resume": "rerunning a command resumes its run; init_from=RUN initializes a new run from another",
    "trainer.devices": "trainer=ddp trainer.devices=2 runs one process per GPU on two GPUs",
    "trainer.max_steps": "the length is set in steps, not epochs",
    "trainer.precision": "such as bf16-mixed",
    "trainer.accelerator": "cpu, gpu or auto",
}
"""Remarks to add to the suggestion of a key."""


def renamed_key(key: str) -> str | None:
    """Returns today's name of a key of Triptych 0.2; None: it was not renamed. Settings of one stack
    (model.decoder.position.share) and of a signal (frames.stride) follow their node."""
    first, _, rest = key.partition(".")
    if first in ("frames", "patches") and rest:
        return f"{RENAMED_KEYS[first]}.{rest}"
    stack = re.match(r"model\.\w+\.", key)
    name = RENAMED_KEYS.get(f"block.{key[stack.end() :]}" if stack else key)
    return RENAMED_KEYS.get(key) or (stack[0] + name.removeprefix("block.") if stack and name else name)


def renamed_choice(group: str, choice: str) -> str | None:
    """Returns today's name of a choice of Triptych 0.2; None: it was not renamed."""
    base = re.sub(r"@.*", "", group)
    if base in ("data", "experiment") and choice.startswith("probes/"):
        return choice.replace("probes/", "synthetic/", 1)
    return RENAMED_CHOICES.get(base, {}).get(choice)


def our_key(theirs: str, ours: Collection[str]) -> str | None:
    """Our name for a key of another library; None: unknown.

    Args:
        theirs: the other key; only the part after its last dot is used.
        ours: the existing keys.
    """
    name = theirs.rpartition(".")[2].lower().replace("-", "_")
    return next((key for key, names in THEIR_KEYS.items() if key in ours and name in names.split()), None)


def alike(name: str, valid: Collection[str]) -> list[str]:
    """The valid names that are spelled like this one, mean the same, or start with it; the first rule that matches."""
    bare = plain(name)
    if same := [choice for choice in valid if plain(choice) == bare]:  # of gpt3/13b and gpt3/1.3b the nearest
        return [max(same, key=lambda choice: difflib.SequenceMatcher(None, name, choice).ratio())]
    if same := [choice for choice in valid if bare in map(plain, THEIR_CHOICES.get(choice, "").split())]:
        return same[:1]
    beginning = name.lower() if len(name) > 2 else f"{name.lower()}/"
    return [choice for choice in valid if choice.lower().startswith(beginning)]


def plain(name: str) -> str:
    """A name without differences in spelling: in lower case, without separators."""
    return re.sub("[^a-z0-9]", "", name.lower())

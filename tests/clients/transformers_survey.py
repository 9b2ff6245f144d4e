#!/usr/bin/env python3
"""Generates docs/transformers_models.md: which causal language models of transformers can be exported.

    .python/bin/python tests/clients/transformers_survey.py [FAMILY...]

It runs `fsdpctl model check` for a tiny configuration of each family, in a process of its own. This takes about half an
hour. With families, it renews only their rows.
"""

import inspect
import functools
import json
import multiprocessing
import os
import pathlib
import re
import signal
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/transformers_models.md"
LIMIT_S = 120
LOOSE = ("--tolerance", "1e-3")
# A row of a family that is supported, and supported with packed documents.
SUPPORTED = (r"\| `\S+` \| yes \|", r"\| `\S+` \| yes \| yes \|")
# Models of other inputs than tokens: encoder-decoders, images, sound.
OTHER_INPUTS = {
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart", "prophetnet",
    "xlm-prophetnet", "emu3", "fuyu", "gemma3", "gemma3n", "git", "got_ocr2", "llama4", "mllama", "phi4_multimodal", "moshi",
    "musicgen", "musicgen_melody", "speech_to_text_2", "trocr", "whisper"}
# Sizes by a pattern of the attribute's name; the first one that fits counts.
SIZES = [(re.compile(pattern), value) for pattern, value in (
    (r".*vocab_size.*", 96),
    (r"(num_hidden|n|num|decoder|encoder|num_encoder|num_decoder)_layers?", 2),
    (r"(moe_|shared_expert_|expert_)intermediate_size", 16),
    (r".*intermediate_size.*|ffn_dim|n_inner|d_ff|ffn_hidden_size|feed_forward_hidden|(de|en)coder_ffn_dim|dim_ff|dff|d_inner", 64),
    (r"qk_head_dim", 16),
    (r"hidden_size|n_embd|d_model|dim_model|dim|n_embed|embed_dim|word_embed_proj_dim|embedding_size|emb_dim|lru_width"
     r"|attention_hidden_size|output_embedding_size|input_embedding_size", 32),
    (r"num_key_value_heads|num_kv_heads|kv_n_heads|kv_heads", 2),
    (r"num_attention_heads|n_heads?|num_heads|(de|en)coder_attention_heads", 4),
    (r".*head_dim|dim_head|attention_head_size|kv_channels", 8),
    (r".*lora_rank", 16),
    (r"num_(local_)?experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok|moe_(top)?k|moe_topk", 2),
    (r"n_group|topk_group|first_k_dense_replace", 1),
    (r"max_position_embeddings|n_positions|n_ctx|max_seq_len|max_sequence_length|context_length", 64),
    (r"sliding_window|window_size|attention_window_size|local_attention", 8),
    (r"rotary_dim", 4),
)]
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Fields that the names do not describe.
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
OWN = {
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 96},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2}, "attn_config": {"kv_n_heads": 2}},
    **dict.fromkeys(("deepseek_v2", "deepseek_v3"), {"num_key_value_heads": 4, "num_experts_per_tok": 2}),
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "falcon_h1": {**MAMBA, "mamba_d_ssm": 64},
    "gemma3n_text": {"hidden_size_per_layer_input": 8, "num_kv_shared_layers": 0, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "longcat_flash": {"num_key_value_heads": 4, "zero_expert_num": 2, "expert_ffn_hidden_size": 16},
    "mamba2": {"num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 8},
    "ministral": {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "nemotron": {"num_key_value_heads": 2},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": [8, 24], "axial_pos_shape": [4, 8], "attn_layers": ["local", "lsh"]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": ["mamba", "hybrid"], "use_mamba_kernels": False, "attention_hidden_size": 64,
              "attention_head_dim": 16},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "num_mem_blocks": 1, "attention_hidden_size": 64,
               "attention_head_dim": 16},
}
HEAD = """# Transformers models that fsdpd can train

`fsdpctl model export` compiles a causal language model of [transformers](https://huggingface.co/docs/transformers) into a
package that ranks train with FSDP ([PyTorch models](pytorch_models.md)). Check your own configuration:

<!-- not run: it needs a model of the Hugging Face Hub -->
```sh
fsdpctl model check --hf ./OLMo-2-7B --sequence-length 128
```

The table has one row per family with its own configuration class, for a tiny random model in transformers {version}. A family
is supported if the check of its units against autograd succeeds; packed documents are supported if the check with
`--documents` succeeds too. `tests/clients/transformers_survey.py` generates this page.

{works} of {count} families are supported, {documents} of them with packed documents. Most of the unsupported families are
mixture-of-experts models, because their code in transformers selects the tokens of each expert by value. Mixtral, Qwen3-MoE,
dots1, DeepSeek-V2 and DeepSeek-V3 are built-in models ([expert parallelism](expert_parallelism.md)).

| family | supported | packed documents | note |
|---|---|---|---|
"""


def tiny(family):
    """Attributes of a small configuration."""
    import transformers

    kind = transformers.CONFIG_MAPPING[family]
    accepted = inspect.signature(kind.__init__).parameters
    default = kind()
    made = {}
    for name in (set(vars(default)) | set(accepted)) & {*accepted, *default.attribute_map, *TOKENS}:
        value = getattr(default, name, None)
        if name in TOKENS:
            made[name] = TOKENS[name]
        elif isinstance(value, int) and not isinstance(value, bool):
            size = next((size for pattern, size in SIZES if pattern.fullmatch(name)), None)
            if size is not None and value > 0:
                made[name] = size
    made |= {"is_decoder": True} if "is_decoder" in vars(default) else {}
    return kind(**{**made, **OWN.get(family, {})})


def check(family, directory, flags):
    """Runs in a process of its own; its streams go to files."""
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(directory / name, os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # pytest replaces them.
    try:
        config = tiny(family)
        config.save_pretrained(directory)
        described = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps({**described, "model_type": family}))
    except Exception as error:
        print(f"no small configuration: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(3)
    from fsdpd.model import command

    words = ["check", "--hf", str(directory), "--sequence-length", "32", "--micro-batch-size", "2", "--dropout", "0", *flags]
    code = command.run(command.arguments_parser().parse_args(words))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def result_of(family):
    """Whether the family is supported, whether with packed documents, and a note."""
    code, text = run(family)
    if code == 0:
        return True, run(family, "--documents")[0] == 0, "needs `--initial-values data`" if "--initial-values data" in text else ""
    lines = [line for line in text.splitlines() if line.startswith(("fsdpctl model: ", "no small"))]
    if "differs from autograd's" in text and run(family, *LOOSE)[0] == 0:
        return True, run(family, *LOOSE, "--documents")[0] == 0, "needs `--tolerance 1e-3`"
    if code not in (2, 3):  # Of the command, and of `check`.
        return False, False, f"internal error: {text.splitlines()[-1] if code > 0 else signal.Signals(-code).name}"
    return False, False, note_of(lines[-1])


@functools.lru_cache(maxsize=None)
def processes():
    """Context whose processes start with the libraries, and without the threads of this one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["transformers", "fsdpd.model.export"])
    return context


def run(family, *flags):
    """Exit code, and what the check reports."""
    with tempfile.TemporaryDirectory(prefix="fsdpd-survey-") as path:
        directory = pathlib.Path(path)
        process = processes().Process(target=check, args=(family, directory, flags))
        process.start()
        process.join(LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
            return 2, f"fsdpctl model: the check takes more than {LIMIT_S} s"
        return process.exitcode, (directory / "err").read_text().replace(str(directory), "DIR")


def note_of(message):
    """The message without directories and advice."""
    message = re.sub(r"\S*/([^/\s]+\.py):(\d+) \((.*?)\): ", r"`\1:\2`: ", message.removeprefix("fsdpctl model: "))
    return message.split("; ")[0].replace("|", "\\|")


def families():
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    kinds = {transformers.CONFIG_MAPPING[family] for family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if family not in OTHER_INPUTS}
    return sorted(kind.model_type for kind in kinds if ".deprecated." not in kind.__module__)


def attends_to_later_tokens(family):
    """Unless its configuration has is_decoder, which the survey sets."""
    import transformers

    kind = transformers.AutoModelForCausalLM._model_mapping[transformers.CONFIG_MAPPING[family]]
    return "= config.is_decoder" in pathlib.Path(inspect.getfile(kind)).read_text()


def row(family):
    supported, documents, note = result_of(family)
    if supported and attends_to_later_tokens(family):
        note = f"{note}; needs `is_decoder: true` in config.json".removeprefix("; ")
    return f"| `{family}` | {'yes' if supported else 'no'} | {'yes' if documents else 'no'} | {note} |\n"


def page(asked):
    """The page, with new rows of some families."""
    import transformers

    text = PAGE.read_text() if PAGE.exists() else ""
    rows = {family: line for line, family in re.findall(r"^(\| `(\S+)` \| .*\n)", text, re.MULTILINE)}
    listed = families()
    for family in asked or listed:
        rows[family] = row(family)
        print(rows[family], end="", file=sys.stderr, flush=True)
    kept = [rows[family] for family in listed if family in rows]
    works, documents = (sum(re.match(pattern, each) is not None for each in kept) for pattern in SUPPORTED)
    return HEAD.format(version=transformers.__version__, works=works, documents=documents, count=len(kept)) + "".join(kept)


def main():
    sys.path.insert(0, str(ROOT / "tests"))
    from harness import wheel

    sys.path.insert(0, str(wheel.installed()))
    PAGE.write_text(page(sys.argv[1:]))


if __name__ == "__main__":
    main()

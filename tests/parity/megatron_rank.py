"""Program that runs Megatron-Core's GPTModel of a Llama or GPT-2 config.json on a CPU:

    save CONFIG.JSON DIR LOGITS   initializes weights and saves them with dist_checkpointing (torch_dist)
    load CONFIG.JSON DIR LOGITS   loads such a directory, as with --dist-ckpt-strictness log_all: `_extra_state` is missing

Both write the logits of fixed tokens. Megatron-Core has no mode without CUDA, so its CUDA calls are stubbed here.
"""

import contextlib
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state, tensor_parallel
from megatron.core.models.gpt import gpt_layer_specs
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import TransformerConfig

torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"


class NoDropout:
    def fork(self, *_):
        return contextlib.nullcontext()


def model_of(config, **more):
    gpt2 = config["model_type"] == "gpt2"
    if gpt2:
        sizes = {"num_layers": config["n_layer"], "hidden_size": config["n_embd"], "num_attention_heads": config["n_head"],
                 "ffn_hidden_size": 4 * config["n_embd"], "layernorm_epsilon": config["layer_norm_epsilon"],
                 "activation_func": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    else:
        sizes = {"num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"],
                 "num_attention_heads": config["num_attention_heads"], "num_query_groups": config["num_key_value_heads"],
                 "ffn_hidden_size": config["intermediate_size"], "layernorm_epsilon": config["rms_norm_eps"],
                 "gated_linear_unit": True, "activation_func": torch.nn.functional.silu, "add_bias_linear": False,
                 "normalization": "RMSNorm"}
    made = TransformerConfig(**sizes, use_cpu_initialization=True, hidden_dropout=0.0, attention_dropout=0.0,
                             masked_softmax_fusion=False, bias_activation_fusion=False, attention_softmax_in_fp32=True, **more)
    spec = gpt_layer_specs.get_gpt_layer_local_spec(normalization=None if gpt2 else "RMSNorm")
    positions = {"position_embedding_type": "learned_absolute"} if gpt2 else {
        "position_embedding_type": "rope", "rotary_base": config.get("rope_theta") or config["rope_parameters"]["rope_theta"]}
    return GPTModel(made, spec, vocab_size=config["vocab_size"], max_sequence_length=config.get("n_positions", 64),
                    share_embeddings_and_output_weights=config["tie_word_embeddings"] if not gpt2 else True, **positions).eval()


def main(way, config_path, directory, out):
    with open(config_path) as file:
        model = model_of(json.load(file))
    if way == "save":
        torch.manual_seed(9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn_like(parameter) * 0.05 + (1 if parameter.dim() == 1 else 0))
        os.mkdir(directory)
        dist_checkpointing.save(model.sharded_state_dict(), directory)
    else:
        requested = dist_checkpointing.load_content_metadata(directory)
        state = dist_checkpointing.load(model.sharded_state_dict(metadata=requested), directory, strict="log_all")
        model.load_state_dict({name: state[name] for name in model.state_dict() if name in state}, strict=False)
    tokens = torch.arange(24).reshape(2, 12) % 256
    mask = torch.ones(12, 12, dtype=torch.bool).triu(1)[None, None]
    with torch.no_grad():
        torch.save(model(tokens, torch.arange(12).expand(2, 12), mask), out)


@contextlib.contextmanager
def alone():
    """Sets up a world of one rank."""
    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/store", rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
        tensor_parallel.random.get_cuda_rng_tracker = tensor_parallel.get_cuda_rng_tracker = NoDropout
        import megatron.core.transformer.dot_product_attention as attention
        attention.tensor_parallel.get_cuda_rng_tracker = NoDropout
        yield


if __name__ == "__main__":
    with alone():
        main(*sys.argv[1:])

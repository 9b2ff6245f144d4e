// Names of LoRA adapters in PEFT (Hugging Face): "layer.0.attention.wq.lora_A" is
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight", with equal shapes.
//
// Pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "fsdp/checkpoint/names/tensor_names.h"

namespace fsdpd {

// The module of each parameter in transformers, by our name: "model.layers.0.self_attn.q_proj" for
// "layer.0.attention.wq". For experts, the module of the first one.
std::map<std::string, std::string> ModulesOf(const ModelConfig& model);

// The two matrices of each adapter, in the model's order. REQUIRES: the model is of the Llama family, and
// `lora` is enabled.
std::vector<NamedParam> AdapterParamsOf(const ModelConfig& model, const LoraConfig& lora);

// The modules that have an adapter, as target_modules of adapter_config.json: "q_proj" if every module of
// that name has one, else the full name "model.layers.0.self_attn.q_proj". Sorted.
std::vector<std::string> TargetModulesOf(const ModelConfig& model, const LoraConfig& lora);

}  // namespace fsdpd

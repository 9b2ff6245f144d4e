#include "fsdp/plan/spec.h"

#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

struct Preset {
  const char* name;
  LlamaConfig config;
};

// vocab, hidden, intermediate, layers, heads, kv_heads, rope_theta, norm_epsilon
const Preset kPresets[] = {
    {"tiny", {256, 128, 384, 4, 4, 2, 10000, 1e-5}},
    {"llama3-1b", {128256, 2048, 8192, 16, 32, 8, 500000, 1e-5}},
    {"llama3-8b", {128256, 4096, 14336, 32, 32, 8, 500000, 1e-5}},
    {"llama3-70b", {128256, 8192, 28672, 80, 64, 8, 500000, 1e-5}},
};

DType ToDType(v1::DType dtype) {
  FSDPD_CHECK(dtype == v1::DTYPE_FP32 || dtype == v1::DTYPE_BF16);
  return dtype == v1::DTYPE_BF16 ? DType::kBf16 : DType::kFp32;
}

TokenType ToTokenType(v1::TokenType type) {
  switch (type) {
    case v1::TOKEN_TYPE_U8:
      return TokenType::kU8;
    case v1::TOKEN_TYPE_U32:
      return TokenType::kU32;
    default:
      return TokenType::kU16;
  }
}

DataConfig ToData(const v1::Data& data) {
  DataConfig config;
  for (const v1::TokenFile& file : data.tokens()) {
    config.tokens.push_back({file.path(), file.weight(), ToTokenType(file.type())});
  }
  config.synthetic_vocab = data.synthetic().vocab();
  config.sequence_length = data.sequence_length();
  return config;
}

AdamWConfig ToAdamW(const v1::AdamW& adamw) {
  FSDPD_CHECK(adamw.betas_size() == 2);
  return {adamw.lr(), adamw.betas(0), adamw.betas(1), adamw.eps(), adamw.weight_decay()};
}

ScheduleConfig ToSchedule(const v1::Schedule& schedule) {
  switch (schedule.shape_case()) {
    case v1::Schedule::kCosine:
      return {ScheduleShape::kCosine, schedule.cosine().warmup_steps(), schedule.cosine().min_lr_ratio()};
    case v1::Schedule::kLinear:
      return {ScheduleShape::kLinear, schedule.linear().warmup_steps(), schedule.linear().min_lr_ratio()};
    default:
      return {ScheduleShape::kConstant, schedule.constant().warmup_steps(), 1};
  }
}

}  // namespace

int64_t BytesOf(DType dtype) { return dtype == DType::kBf16 ? 2 : 4; }

const LlamaConfig* FindPreset(const std::string& name) {
  for (const Preset& preset : kPresets) {
    if (name == preset.name) return &preset.config;
  }
  return nullptr;
}

std::vector<std::string> PresetNames() {
  std::vector<std::string> names;
  for (const Preset& preset : kPresets) names.push_back(preset.name);
  return names;
}

LlamaConfig ToLlama(const v1::Model& model) {
  if (model.source_case() == v1::Model::kPreset) {
    const LlamaConfig* preset = FindPreset(model.preset());
    FSDPD_CHECK(preset != nullptr);
    return *preset;
  }
  FSDPD_CHECK(model.has_llama());
  const v1::Llama& llama = model.llama();
  LlamaConfig config;
  config.vocab_size = llama.vocab_size();
  config.hidden_size = llama.hidden_size();
  config.intermediate_size = llama.intermediate_size();
  config.layers = llama.layers();
  config.heads = llama.heads();
  config.kv_heads = llama.kv_heads() == 0 ? llama.heads() : llama.kv_heads();
  if (llama.rope_theta() != 0) config.rope_theta = llama.rope_theta();
  if (llama.norm_epsilon() != 0) config.norm_epsilon = llama.norm_epsilon();
  return config;
}

Spec ToSpec(const v1::JobSpec& resolved) {
  Spec spec;
  spec.name = resolved.name();
  spec.model = ToLlama(resolved.model());
  spec.data = ToData(resolved.data());
  spec.steps = resolved.train().steps();
  spec.micro_batch = resolved.train().micro_batch();
  spec.global_batch = resolved.train().global_batch();
  spec.seed = static_cast<uint64_t>(resolved.train().seed());
  spec.adamw = ToAdamW(resolved.optimizer().adamw());
  spec.clip_norm = resolved.optimizer().clip_norm();
  spec.schedule = ToSchedule(resolved.schedule());
  spec.compute = ToDType(resolved.precision().compute());
  spec.grad_comm = ToDType(resolved.precision().grad_comm());
  spec.strategy =
      resolved.fsdp().strategy() == v1::STRATEGY_NO_SHARD ? Strategy::kNoShard : Strategy::kOptimGradsParams;
  spec.prefetch_bytes = resolved.fsdp().prefetch_bytes();
  spec.recompute = resolved.fsdp().recompute() == v1::RECOMPUTE_FULL ? Recompute::kFull : Recompute::kNone;
  spec.device = resolved.resources().device() == v1::DEVICE_CPU ? DeviceKind::kCpu : DeviceKind::kCuda;
  spec.world = resolved.resources().nodes() * resolved.resources().ranks_per_node();
  spec.memory_budget_bytes = resolved.resources().memory_budget_bytes();
  FSDPD_CHECK(spec.world > 0 && spec.micro_batch > 0 && spec.micro_batches_per_step() > 0);
  return spec;
}

}  // namespace fsdpd

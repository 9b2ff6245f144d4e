// From a JobSpec as people write it to values that the plan and the engine compute with.
//
// Two steps, so that what `auto` became can be shown and stored:
//   Resolve()  (resolve.h) fills every default and `auto` in a JobSpec and says why;
//   ToSpec()   turns a resolved JobSpec into plain structs. Nothing below this file sees a proto.
//
// REQUIRES for both: CheckJob() (rules.h) found no error in the spec.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

enum class DType { kFp32, kBf16 };
int64_t BytesOf(DType dtype);

enum class Strategy { kNoShard, kOptimGradsParams };
enum class Recompute { kNone, kFull };
enum class DeviceKind { kCpu, kCuda };
enum class ScheduleShape { kConstant, kCosine, kLinear };
enum class TokenType { kU8, kU16, kU32 };

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;

  int64_t head_size() const { return hidden_size / heads; }
};

struct TokenSource {
  std::string path;
  double weight = 1;
  TokenType type = TokenType::kU16;
};

struct DataConfig {
  std::vector<TokenSource> tokens;  // Empty: synthetic.
  int64_t synthetic_vocab = 0;
  int64_t sequence_length = 0;
};

struct AdamWConfig {
  double lr = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
};

struct ScheduleConfig {
  ScheduleShape shape = ScheduleShape::kConstant;
  int64_t warmup_steps = 0;
  double min_lr_ratio = 0;
};

struct Spec {
  std::string name;
  LlamaConfig model;
  DataConfig data;
  int64_t steps = 0;
  int64_t micro_batch = 1;   // Samples.
  int64_t global_batch = 1;  // Samples.
  uint64_t seed = 1;
  AdamWConfig adamw;
  double clip_norm = 0;  // 0: no clipping.
  ScheduleConfig schedule;
  DType compute = DType::kFp32;
  DType grad_comm = DType::kFp32;
  Strategy strategy = Strategy::kOptimGradsParams;
  int64_t prefetch_bytes = 0;
  Recompute recompute = Recompute::kNone;
  DeviceKind device = DeviceKind::kCpu;
  int64_t world = 1;
  int64_t memory_budget_bytes = 0;  // 0: no budget known.

  int64_t micro_batches_per_step() const { return global_batch / (micro_batch * world); }
  int64_t tokens_per_step() const { return global_batch * data.sequence_length; }
};

// Built-in model configurations, by name; null when unknown.
const LlamaConfig* FindPreset(const std::string& name);
std::vector<std::string> PresetNames();

// The sizes of a model, defaults filled in. REQUIRES: `preset` is a known one or `llama` is set.
LlamaConfig ToLlama(const v1::Model& model);

// REQUIRES: `resolved` came out of Resolve().
Spec ToSpec(const v1::JobSpec& resolved);

}  // namespace fsdpd

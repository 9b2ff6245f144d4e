// From a JobSpec as people write it to values that the plan and the engine compute with.
//
// Two steps, so that what `auto` became can be shown and stored:
//   Resolve()  (resolve.h) fills every default and `auto` in a JobSpec and says why;
//   ToSpec()   turns a resolved JobSpec into plain structs. Nothing below this file sees a proto.
//
// REQUIRES for both: CheckJob() (rules.h) found no error in the spec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "fsdp/plan/mesh/mesh.h"
#include "fsdp/plan/mesh/sequence_partition.h"
#include "fsdp/plan/spec/dtype.h"
#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {

enum class Strategy { kNoShard, kOptim, kOptimGrads, kOptimGradsParams };
const char* NameOf(Strategy strategy);

enum class Recompute { kNone, kSelective, kFull };
enum class DeviceKind { kCpu, kCuda };
enum class OptimizerKind { kAdamW, kSgd };
enum class ScheduleShape { kConstant, kCosine, kLinear, kWsd };
enum class StepAction { kStop, kSkip, kRewind };
enum class TokenType { kU8, kU16, kU32, kMegatron };

struct RopeScaling {
  double factor = 1;  // 1: none.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
  bool yarn = false;
  double mscale = 1;  // With yarn, as the next.
  double mscale_all_dim = 0;

  double RotatedScale() const;  // Of rotated queries and keys, each.
  double ScoreScale() const;    // Of scores, with latent attention.
};

// v1::Llama::LatentAttention says what each number is.
struct LatentConfig {
  int64_t rank = 0;        // 0: the model has key and value heads.
  int64_t query_rank = 0;  // 0: queries are made of the token itself.
  int64_t plain_head_size = 0;
  int64_t rotary_head_size = 0;
  int64_t value_head_size = 0;
  bool interleaved = true;

  explicit operator bool() const { return rank > 0; }
};

// v1::Llama::Experts says what each number is.
struct ExpertsConfig {
  int64_t count = 0;  // 0: the model has none.
  int64_t per_token = 0;
  int64_t intermediate_size = 0;
  bool normalized = true;
  int64_t dense_layers = 0;
  double balance_loss = 0;
  double z_loss = 0;
  bool sigmoid = false;  // Scores.
  bool selection_bias = false;
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  bool groups_by_best = false;  // By one score, and not by the sum of two.
  double weight_scale = 1;
  int64_t shared_intermediate_size = 0;  // 0: there is no such layer.
  double bias_update_rate = 0;
};

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  double rope_theta = 10000;
  double norm_epsilon = 1e-5;
  int64_t head_size = 0;
  bool tied_embeddings = false;
  bool qk_norm = false;
  bool attention_bias = false;
  RopeScaling rope_scaling = {};
  int64_t positions = 0;  // Longest sequence; 0: any.
  ExpertsConfig experts = {};
  LatentConfig latent = {};  // With it kv_heads is heads, and head_size that of queries and keys.

  int64_t rotary_size() const { return latent ? latent.rotary_head_size : head_size; }  // Of a head.
  bool HasExperts(int64_t layer) const { return experts.count > 0 && layer >= experts.dense_layers; }
  int64_t expert_layers() const { return experts.count > 0 ? layers - experts.dense_layers : 0; }
};

struct Gpt2Config {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t positions = 0;
  double norm_epsilon = 1e-5;
  bool tied_embeddings = true;

  int64_t head_size() const { return hidden_size / heads; }
};

// What the plan must know of a model that it does not know itself: v1::Plugin says what each number is.
// Values are elements in compute precision, so that one description holds for every precision.
struct ParamDescription {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = true;
};
struct UnitDescription {
  std::string name;
  std::vector<ParamDescription> params;
  std::string borrows = {};           // Another unit's name, or empty.
  int64_t kept_values = 0;            // Per token, as all of these.
  int64_t kept_values_selective = 0;  // 0: kept_values.
  int64_t workspace_values = 0;
  int64_t output_values = 0;
  double flops_per_token = 0;
};
struct ModelDescription {
  int64_t vocab_size = 0;
  int64_t max_sequence_length = 0;  // 0: any.
  std::vector<UnitDescription> units;
};

// The model of a plug-in (fsdp/model/plugin.h), or of the program that uses the library (fsdp/fsdp.h).
struct PluginConfig : ModelDescription {
  std::string path;
  std::string args;
};

using ModelConfig = std::variant<LlamaConfig, Gpt2Config, PluginConfig>;
int64_t VocabSize(const ModelConfig& model);
int64_t MaxSequenceLength(const ModelConfig& model);  // 0: any.
// What transformers call a model of this kind: "qwen3". Empty: they have none.
std::string TransformersType(const LlamaConfig& model);
int64_t ExpertLayers(const ModelConfig& model);  // Of which tokens go to some of many experts.

struct TokenSource {
  std::string path;
  double weight = 1;
  TokenType type = TokenType::kU16;
  std::string mask = {};  // Empty: every token counts as a target.
};

struct DataConfig {
  std::vector<TokenSource> tokens;  // Empty: synthetic.
  int64_t synthetic_vocab = 0;
  int64_t sequence_length = 0;
  std::vector<TokenSource> validation;
  std::optional<int64_t> ignored_token;
  std::optional<int64_t> document_end_token;  // None: a sample is one document.
};

struct EvaluationConfig {
  int64_t every_steps = 0;  // 0: no evaluation.
  int64_t samples = 0;      // 0: all.
};

// What becomes of a step that is not finite: v1::OnNonfinite says what each value is.
struct OnNonfiniteConfig {
  StepAction action = StepAction::kStop;
  int64_t max = 0;
};

// ... or that is a spike (v1::OnSpike).
struct OnSpikeConfig {
  StepAction action = StepAction::kStop;
  int64_t max = 0;
  double grad_norm_factor = 0;  // 0: nobody looks for spikes.
  int64_t window = 0;

  bool watched() const { return grad_norm_factor > 0; }
};

// What a group of the spec says for the parameters that match one of its patterns.
struct ParamGroup {
  std::vector<std::string> patterns;
  std::optional<double> weight_decay;
  double lr_scale = 1;
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 3e-4;
  double weight_decay = 0.1;
  double beta1 = 0.9;  // AdamW.
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0;  // SGD.
  bool nesterov = false;
  double clip_norm = 0;  // 0: no clipping.
  std::vector<ParamGroup> groups;

  int moments() const { return kind == OptimizerKind::kAdamW ? 2 : momentum > 0 ? 1 : 0; }
};

struct ScheduleConfig {
  ScheduleShape shape = ScheduleShape::kConstant;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // kWsd.
  double min_lr_ratio = 0;
};

// How matrices begin; what becomes of it for each is ParamFacts::deviation.
struct InitialConfig {
  double deviation = 0.02;
  std::optional<double> embedding_deviation;  // None: `deviation`.
  std::optional<bool> scale_outputs;          // None: as the model does.
};

// What a job writes and starts from: v1::Checkpoint says what each value is.
struct CheckpointConfig {
  std::string dir;            // Empty: none are written.
  int64_t every_steps = 0;    // 0: none after so many steps.
  int64_t every_minutes = 0;  // 0: none after so many minutes.
  bool on_end = false;
  int64_t keep_last = 3;
  int64_t keep_every = 0;              // 0: none is spared.
  std::string load;                    // Empty: the job starts fresh.
  std::optional<bool> load_optimizer;  // None: where there is one to load.
  bool exports_hf = false;

  bool saves_between() const { return !dir.empty() && (every_steps > 0 || every_minutes > 0); }
  bool saves() const { return saves_between() || (!dir.empty() && on_end); }
};

struct LossScaleConfig {
  double initial = 65536;
  int64_t growth_interval = 2000;
};

// What the spec says of number types. Which type a bucket is stored, gathered, sent and summed in, and a unit
// computes in, is derived from it once: BucketTypes (layout.h), UnitFacts::compute (model_facts.h).
struct Precision {
  DType compute = DType::kFp32;
  DType main_grads = DType::kFp32;
  DType grad_comm = DType::kFp32;
  DType moments = DType::kFp32;
  bool fp8 = false;                         // Layers' matrices are gathered and multiplied in FP8.
  std::vector<std::string> keep_bf16 = {};  // Patterns of those that are not.
};

struct Spec {
  std::string name;
  ModelConfig model;
  DataConfig data;
  int64_t steps = 0;
  int64_t micro_batch = 1;   // Samples.
  int64_t global_batch = 1;  // Samples.
  uint64_t seed = 1;
  InitialConfig initial;
  EvaluationConfig evaluation;
  OnNonfiniteConfig on_nonfinite;
  OnSpikeConfig on_spike;
  std::vector<std::string> frozen;  // Patterns.
  std::optional<bool> graphs;  // A step is launched as one CUDA graph, where it can be. Null: a short one.
  bool deterministic = false;  // Sums are in an order that is the same on every run.
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  Precision precision;
  LossScaleConfig loss_scale;  // Where scales_loss().
  Strategy strategy = Strategy::kOptimGradsParams;
  int64_t prefetch_bytes = 0;
  bool keep_gathered = false;
  bool offload_optimizer = false;  // The optimizer's state lies in host memory (Bucket::offloaded).
  int64_t offloaded_layers =
      0;  // Blocks that keep in host memory what their backward needs (OffloadsActivations).
  Recompute recompute = Recompute::kNone;
  // Of the blocks that are not offloaded, the first so many use `recompute`, those after it the next cheaper.
  int64_t recompute_layers = 0;
  DeviceKind device = DeviceKind::kCpu;
  CheckpointConfig checkpoint;
  Mesh mesh;
  std::vector<int64_t> stage_units;  // Of each run that stages get by turns; empty: there is one stage.
  bool zero_bubble = false;          // Stages put gradients of matrices off.
  Strategy outer_strategy = Strategy::kNoShard;  // Over the replicate axis. Or kOptim.
  int64_t memory_budget_bytes = 0;               // 0: no budget known.

  int64_t micro_batches_per_step() const { return global_batch / (micro_batch * mesh.data_ranks()); }
  int64_t tokens_per_step() const { return global_batch * data.sequence_length; }
  // Of each sample that the rank reads.
  SequencePartition SequenceOf(int64_t rank) const {
    return {data.sequence_length, mesh.size(Axis::kContext), mesh.IndexIn(Group::kContext, rank)};
  }
  // Gradients of fp16 would vanish.
  bool scales_loss() const { return precision.compute == DType::kFp16; }
  // A checkpoint is taken after this step, which is from 1 to `steps`, whether or not somebody asks for one.
  bool SavesAfter(int64_t step) const;

  // What the strategy keeps in parts.
  bool shards_optimizer() const { return strategy != Strategy::kNoShard; }
  bool shards_grads() const { return strategy == Strategy::kOptimGrads || shards_params(); }
  bool shards_params() const { return strategy == Strategy::kOptimGradsParams; }
  bool shards_over_outer() const {
    return mesh.size(Axis::kReplicate) > 1 && outer_strategy == Strategy::kOptim;
  }
  // A gathered bucket stays for the whole step.
  bool keeps_gathered() const { return !shards_params() || keep_gathered; }
};

// Built-in model configurations, by name; null when unknown.
const ModelConfig* FindPreset(const std::string& name);
std::vector<std::string> PresetNames();

// The sizes of a model, defaults filled in. REQUIRES: `preset` is a known one, or `llama`, `gpt2` or `plugin`
// is set.
ModelConfig ToModelConfig(const v1::Model& model);

// Experts of a layer; 0 where the model has none, or is not known.
int64_t ExpertsOf(const v1::Model& model);

// The way back, for what a model says of itself; path and args stay empty.
v1::Plugin ToProto(const ModelDescription& model);

// REQUIRES: `resolved` came out of Resolve().
Spec ToSpec(const v1::JobSpec& resolved);

}  // namespace fsdpd

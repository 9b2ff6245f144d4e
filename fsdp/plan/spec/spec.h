// Plain-struct form of a job spec, for the planner and the engine. Converted in two steps, so that the
// choices made for `auto` can be shown and stored:
//  Resolve()  (resolve.h) fills every default and `auto` in a JobSpec, with reasons;
//  ToSpec()   converts a resolved JobSpec into plain structs. Code below this file never sees a proto.
//
// REQUIRES for both: CheckJob() (rules.h) found no error in the spec.
#pragma once

#include <cmath>
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
enum class TooLong { kTruncate, kSplit, kDrop };

struct RopeScaling {
  double factor = 1;  // 1: no scaling.
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_positions = 8192;
  bool yarn = false;
  double mscale = 1;  // Only with YaRN, like mscale_all_dim.
  double mscale_all_dim = 0;

  double RotatedScale() const;  // Factor on rotated queries, and on rotated keys.
  double ScoreScale() const;    // Factor on attention scores, for latent attention.
};

// Multi-head latent attention (MLA); v1::Llama::LatentAttention documents each field.
struct LatentConfig {
  int64_t rank = 0;        // 0: no latent attention.
  int64_t query_rank = 0;  // 0: queries are projected directly from the hidden state.
  int64_t plain_head_size = 0;
  int64_t rotary_head_size = 0;
  int64_t value_head_size = 0;
  bool interleaved = true;

  explicit operator bool() const { return rank > 0; }
};

// Mixture-of-experts layers; v1::Llama::Experts documents each field.
struct ExpertsConfig {
  int64_t count = 0;  // 0: dense model.
  int64_t per_token = 0;
  int64_t intermediate_size = 0;
  bool normalized = true;
  int64_t dense_layers = 0;
  double balance_loss = 0;
  double z_loss = 0;
  bool sigmoid = false;  // Router scores by sigmoid instead of softmax.
  bool selection_bias = false;
  int64_t groups = 1;
  int64_t groups_per_token = 1;
  bool groups_by_best = false;  // Rank expert groups by their best score instead of the sum of the best two.
  double weight_scale = 1;
  int64_t shared_intermediate_size = 0;  // 0: no shared expert.
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
  int64_t positions = 0;  // Maximum sequence length; 0: unlimited.
  ExpertsConfig experts = {};
  // With latent attention, kv_heads == heads, and head_size is the query/key head size.
  LatentConfig latent = {};

  // Rotated part of a head.
  int64_t rotary_size() const { return latent ? latent.rotary_head_size : head_size; }
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

// Description of a plug-in model; v1::Plugin documents each field. Sizes are in elements of compute
// precision, so that one description holds for every precision.
struct ParamDescription {
  std::string name;
  std::vector<int64_t> shape;
  bool decay = true;
};
struct UnitDescription {
  std::string name;
  std::vector<ParamDescription> params;
  std::string borrows = {};            // Name of the unit whose parameters this one shares; empty: none.
  int64_t saved_values = 0;            // Saved activations per token; all of these are per token.
  int64_t saved_values_selective = 0;  // With selective recompute; 0: same as saved_values.
  int64_t workspace_values = 0;
  int64_t output_values = 0;
  double flops_per_token = 0;
};
struct ModelDescription {
  int64_t vocab_size = 0;
  int64_t max_sequence_length = 0;  // 0: unlimited.
  std::vector<UnitDescription> units;
};

// A plug-in model (fsdp/model/plugin.h), or one defined by a program that uses the library (fsdp/fsdp.h).
struct PluginConfig : ModelDescription {
  std::string path;
  std::string args;
};

// A PyTorch model exported ahead of time; v1::Package documents each field. Sizes are for one micro-batch of
// the shape that it was exported for.
struct PackageParam : ParamDescription {
  bool frozen = false;
};
struct PackageVariant {
  Recompute recompute = Recompute::kNone;
  int64_t saved_bytes = 0;
  int64_t workspace_bytes = 0;
  double recomputed_flops = 0;
  double forward_seconds = 0;
  double backward_seconds = 0;
};
struct PackageHead {
  int64_t weight = 0;
  std::optional<int64_t> bias;
  double logit_scale = 1;
  double soft_cap = 0;  // 0: none.
};
struct PackageGraph {
  std::vector<PackageParam> params;
  int64_t output_bytes = 0;
  DType output_type = DType::kFp32;
  double forward_flops = 0;
  double attention_flops = 0;
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  bool backward_reads_params = false;
  int64_t evaluation_workspace_bytes = 0;
  std::vector<PackageVariant> variants;
  std::optional<PackageHead> head;

  // Index of the variant that a unit of this graph runs with `recompute`: that variant, else the next cheaper
  // one.
  size_t VariantFor(Recompute recompute) const;
};
struct PackageUnit {
  std::string name;
  int64_t graph = 0;
  std::string module;
  std::string tied_to;  // Empty: none.
};
struct PackageConfig {
  std::string path;
  std::string digest;
  int64_t vocab_size = 0;
  int64_t sequence_length = 0;
  int64_t micro_batch = 0;
  DType compute = DType::kFp32;
  DeviceKind device = DeviceKind::kCpu;
  std::string target;
  std::string torch_version;
  int64_t buffer_bytes = 0;
  double matmul_flops = 0;
  std::vector<PackageGraph> graphs;
  std::vector<PackageUnit> units;

  const PackageGraph& GraphOf(const PackageUnit& unit) const { return graphs[unit.graph]; }
};

using ModelConfig = std::variant<LlamaConfig, Gpt2Config, PluginConfig, PackageConfig>;
int64_t VocabSize(const ModelConfig& model);
int64_t MaxSequenceLength(const ModelConfig& model);  // 0: any.
// model_type in Hugging Face Transformers, e.g. "qwen3"; empty if Transformers has none.
std::string TransformersType(const LlamaConfig& model);
int64_t ExpertLayers(const ModelConfig& model);  // Number of mixture-of-experts layers.

struct TokenSource {
  std::string path;
  double weight = 1;
  TokenType type = TokenType::kU16;
  std::string mask = {};  // Empty: every token is a target.
};

struct DataConfig {
  std::vector<TokenSource> tokens;  // Empty: synthetic data.
  int64_t synthetic_vocab = 0;
  int64_t sequence_length = 0;
  std::vector<TokenSource> validation;
  std::optional<int64_t> ignore_index;
  std::optional<int64_t> document_end_token;  // Unset: each sample is one document.
  bool packs_documents = false;               // Samples consist of whole documents.
  TooLong too_long = TooLong::kTruncate;      // With packs_documents.
};

struct EvaluationConfig {
  int64_t every_steps = 0;  // 0: evaluation is off.
  int64_t samples = 0;      // 0: all.
};

// Policy for a step with a non-finite loss or gradient norm; v1::OnNonfinite documents the values.
struct OnNonfiniteConfig {
  StepAction action = StepAction::kStop;
  int64_t max = 0;
};

// Policy for a gradient-norm spike; v1::OnSpike documents the values.
struct OnSpikeConfig {
  StepAction action = StepAction::kStop;
  int64_t max = 0;
  double grad_norm_factor = 0;  // 0: spike detection is off.
  int64_t window = 0;

  bool watched() const { return grad_norm_factor > 0; }
};

// Optimizer settings for the parameters that match one of the patterns.
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

// Weight initialization; the resulting value per parameter is ParamFacts::deviation.
struct InitialConfig {
  double deviation = 0.02;
  std::optional<double> embedding_deviation;  // Unset: `deviation`.
  std::optional<bool> scale_outputs;          // Unset: the model's default.
};

// Checkpoint settings; v1::Checkpoint documents each field.
struct CheckpointConfig {
  std::string dir;            // Empty: no checkpoints are written.
  int64_t every_steps = 0;    // 0: no checkpoint by step count.
  int64_t every_minutes = 0;  // 0: no checkpoint by time.
  bool on_end = false;
  int64_t keep_last = 3;
  int64_t keep_every = 0;              // 0: no checkpoint is exempt from keep_last.
  std::string load;                    // Empty: train from scratch.
  std::optional<bool> load_optimizer;  // Unset: load it if the checkpoint has it.
  std::string export_format = {};      // "hf", "peft", or empty: no export.

  bool saves_between() const { return !dir.empty() && (every_steps > 0 || every_minutes > 0); }
  bool saves() const { return saves_between() || (!dir.empty() && on_end); }
};

struct LossScaleConfig {
  double initial = 65536;
  int64_t growth_interval = 2000;
};

// Low-rank adapters; rank 0: none.
struct LoraConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rank_stabilized = false;
  std::vector<std::string> targets = {};  // Patterns; empty: every matrix that can have an adapter.
  std::string base_model = {};            // Source of the frozen weights; empty: initial values.
  bool nf4 = false;                       // Frozen matrices that can have an adapter are stored in NF4.

  bool enabled() const { return rank > 0; }
  // Factor of x A^T B^T.
  double scale() const {
    const auto ranks = static_cast<double>(rank);
    return alpha / (rank_stabilized ? std::sqrt(ranks) : ranks);
  }
};

// Precision settings of the spec. The dtype of each bucket in storage, gather, communication and
// accumulation, and the compute dtype of each unit, are derived from these once: BucketTypes (layout.h),
// UnitFacts::compute (model_facts.h).
struct Precision {
  DType compute = DType::kFp32;
  DType main_grads = DType::kFp32;
  DType grad_comm = DType::kFp32;
  DType moments = DType::kFp32;
  bool fp8 = false;                         // Layer weights are gathered and multiplied in FP8,
  std::vector<std::string> keep_bf16 = {};  // except those that match these patterns.
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
  LoraConfig lora;
  std::optional<bool> graphs;  // Launch a step as one CUDA graph if possible. Unset: only for short steps.
  bool deterministic = false;  // Bitwise reproducible: every sum has a fixed order.
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  Precision precision;
  LossScaleConfig loss_scale;  // Used if scales_loss().
  Strategy strategy = Strategy::kOptimGradsParams;
  int64_t prefetch_bytes = 0;
  bool keep_gathered = false;
  bool offload_optimizer = false;  // Optimizer state lives in host memory (Bucket::offloaded).
  int64_t offloaded_layers = 0;    // Layers that offload saved activations (OffloadsActivations).
  Recompute recompute = Recompute::kNone;
  // Among layers that are not offloaded, the first `recompute_layers` use `recompute`; the rest use the next
  // cheaper kind.
  int64_t recompute_layers = 0;
  DeviceKind device = DeviceKind::kCpu;
  CheckpointConfig checkpoint;
  Mesh mesh;
  // Units per run; runs are dealt to stages round-robin. Empty: no pipeline.
  std::vector<int64_t> stage_units;
  bool zero_bubble = false;  // Defer weight gradients (ZB-H1).
  // Over the replicate axis: kNoShard (HSDP), or kOptim (HFSDP: replicas shard optimizer state).
  Strategy outer_strategy = Strategy::kNoShard;
  int64_t memory_budget_bytes = 0;  // 0: unknown.

  int64_t micro_batches_per_step() const { return global_batch / (micro_batch * mesh.data_ranks()); }
  int64_t tokens_per_step() const { return global_batch * data.sequence_length; }
  // The part of each sample that the rank trains on (context parallelism).
  SequencePartition SequenceOf(int64_t rank) const {
    return {data.sequence_length, mesh.size(Axis::kContext), mesh.IndexIn(Group::kContext, rank)};
  }
  // fp16 gradients would underflow without loss scaling.
  bool scales_loss() const { return precision.compute == DType::kFp16; }
  // A checkpoint is scheduled after this step (1..steps), regardless of on-demand checkpoints.
  bool SavesAfter(int64_t step) const;

  // State that the strategy shards.
  bool shards_optimizer() const { return strategy != Strategy::kNoShard; }
  bool shards_grads() const { return strategy == Strategy::kOptimGrads || shards_params(); }
  // Type in which units write gradients. Unsharded gradients are accumulated in place and so are fp32.
  DType written_grads() const { return shards_grads() ? precision.grad_comm : DType::kFp32; }
  bool shards_params() const { return strategy == Strategy::kOptimGradsParams; }
  bool shards_over_outer() const {
    return mesh.size(Axis::kReplicate) > 1 && outer_strategy == Strategy::kOptim;
  }
  // Gathered buckets stay resident for the whole step.
  bool keeps_gathered() const { return !shards_params() || keep_gathered; }
};

// Built-in model configurations, by name; null when unknown.
const ModelConfig* FindPreset(const std::string& name);
std::vector<std::string> PresetNames();

// The model configuration with defaults filled in. REQUIRES: `preset` is a known preset, or `llama`, `gpt2`
// or `plugin` is set.
ModelConfig ToModelConfig(const v1::Model& model);

// With defaults filled in.
LoraConfig ToLoraConfig(const v1::Lora& lora);

// Experts per layer; 0 if the model is dense or unknown.
int64_t ExpertsOf(const v1::Model& model);

// The inverse, for a model's description of itself; path and args stay empty.
v1::Plugin ToProto(const ModelDescription& model);

// REQUIRES: `resolved` is a result of Resolve().
Spec ToSpec(const v1::JobSpec& resolved);

}  // namespace fsdpd

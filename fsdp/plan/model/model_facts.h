// Model facts: everything the planner needs without building the model. Units, parameter shapes, saved
// activations and cost. fsdp/model builds modules whose parameters have exactly these names, shapes and order
// (its tests compare the two), so the coordinator can plan a job that it cannot run itself.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/model/tensor_partition.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// The head computes logits and loss in chunks of this many tokens, so the logits of a whole micro-batch never
// exist.
constexpr int64_t kLossChunkTokens = 2048;
constexpr int64_t LossChunks(int64_t tokens) { return (tokens + kLossChunkTokens - 1) / kLossChunkTokens; }

// In backward, CUDA's document-masked attention pads the fp32 query gradient of each document by this many
// rows. Documents are processed in groups of at most MaxDocumentRows() padded rows, at least one document
// per group.
constexpr int64_t kDocumentPaddingRows = 128;
constexpr int64_t MaxDocumentRows(int64_t tokens) { return 2 * tokens + kDocumentPaddingRows; }

// On CUDA, each expert's rows start at a multiple of this number and are padded with zeros to at least this
// number (bf16 products need half of it).
constexpr int64_t kExpertRowStep = kFp8Step;

// Routing statistics per step, each summed over tokens and MoE layers: load imbalance, entropy of scores, and
// the two auxiliary losses, as in v1::StepReport::Routing.
constexpr int kRoutingSums = 4;

enum class UnitKind { kEmbedding, kBlock, kHead };

// The two matrices of a low-rank adapter (lora_facts.h).
enum class LoraPart { kNone, kA, kB };

// For tied embeddings that two stages use: the lender's stage has the original, which is saved in
// checkpoints; the borrower's stage has the tied-embedding replica.
enum class TiedReplica { kNone, kOriginal, kCopy };

// The name before a parameter's own, as checkpoints know it: ParamFacts::owner if set, else its unit.
inline const std::string& OwnerOf(const std::string& unit, const std::optional<std::string>& owner) {
  return owner.has_value() ? *owner : unit;
}

// Full name of a parameter, as patterns and checkpoints know it. `Unit` and `Param`: of the facts or of the
// layout.
template <typename Unit, typename Param>
std::string FullName(const Unit& unit, const Param& param) {
  const std::string& owner = OwnerOf(unit.name, param.owner);
  return owner.empty() ? param.name : owner + "." + param.name;
}

struct ParamFacts {
  std::string name;  // Name within the unit: "attention.wq".
  // Shape that a rank computes with: the tensor-parallel or expert-parallel shard if partitioned.
  std::vector<int64_t> shape;
  // True for matrices. Norms and biases have no weight decay unless a parameter group sets one.
  bool decay = true;
  double deviation = 0.02;  // Matrices are initialized from normal(0, deviation).
  // Set by DescribeSpec from the spec's frozen patterns and groups.
  bool trainable = true;
  double weight_decay = 0;
  double lr_scale = 1;
  TensorPartition partition = {};
  bool fixed = false;    // Never trained.
  bool fp8 = false;      // Gathered and multiplied in FP8.
  bool in_fp32 = false;  // Gathered in fp32, like a selection bias, without being one.
  bool nf4 = false;      // Frozen, and stored in NF4 (fsdp/kernels/nf4/nf4_format.h).
  LoraPart lora = LoraPart::kNone;
  TiedReplica tied_replica = TiedReplica::kNone;
  // For a tied-embedding replica, the unit that owns it. For a parameter of a package that is not named after
  // its unit, the module that owns it: "model.norm" of "model.norm.weight", or empty for a parameter of the
  // model itself. Else not set (OwnerOf).
  std::optional<std::string> owner = {};
  // For a selection bias, which each step adjusts by how often each expert was chosen: first index in the
  // step's choice counts (ModelFacts::choices). Else -1.
  int64_t choices_begin = -1;

  bool is_selection_bias() const { return choices_begin >= 0; }
  // Inline, because plug-ins use units without linking the planner.
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
  int64_t full_elements() const { return elements() * partition.parts; }
};

// Saved activations of one micro-batch on one rank in bytes, by recompute kind; the input is included.
struct SavedBytes {
  int64_t none = 0;       // No recompute.
  int64_t selective = 0;  // Drops what costs the most memory per FLOP to recompute.
  int64_t full = 0;       // Only the input.

  int64_t With(Recompute recompute) const;
};

// Measured time of a package's compiled forward and backward, as the FLOPs of matrix products that take as
// long.
struct MeasuredWork {
  double forward = 0;
  double backward = 0;
};

// Collectives that a unit runs through its context (fsdp/model/unit/unit_context.h).
enum class Exchange {
  kAllReduce,
  kAllGather,
  kReduceScatter,  // UnitContext::SendParts: the unit sums the parts that it receives.
  kAllToAll,
};
const char* VerbOf(Exchange what);  // "gathers"

// Elements of one micro-batch: for a sum, those of all ranks' parts together; for a send, those that the rank
// sends, including to itself, with perfectly balanced experts. Full recompute runs the forward's exchanges
// again.
struct UnitExchange {
  Group group = Group::kSelf;
  int64_t forward_elements = 0;
  int64_t backward_elements = 0;
  Exchange what = Exchange::kAllReduce;
  DType type = DType::kFp32;
  int64_t selective_elements = 0;  // Part of forward_elements that selective recompute runs again.
};

struct UnitFacts {
  std::string name;  // "embedding", "layer.3", "head"
  UnitKind kind = UnitKind::kBlock;
  std::vector<ParamFacts> params;
  // Unit that lends its parameters to this one (tied embeddings: the head borrows the embedding), or -1. The
  // lender owns, reduces and updates them, and precedes the borrower in the chain. If the lender is in
  // another stage, this unit has a tied-embedding replica among its own parameters instead.
  int borrows = -1;
  // Its backward reads its own parameters. False for an embedding, whose backward needs no gather.
  bool backward_reads = true;
  // For one micro-batch on one rank:
  SavedBytes saved_bytes = {};
  int64_t workspace_bytes = 0;  // Extra bytes at the unit's own peak, in forward or backward.
  int64_t output_bytes = 0;     // Hidden states passed to the next unit.
  double forward_flops = 0;     // Matrix products and attention; causal attention is counted as half.
  double attention_flops = 0;   // Attention's part of forward_flops.
  // If only flash attention supports the head sizes on CUDA: factor of actual work, with padded widths, over
  // attention_flops. 0: any kernel works.
  double flash_work = 0;
  double repeated_flops = 0;   // Part of forward_flops that other ranks of the unit's axes repeat.
  double fp8_flops = 0;        // FP8 products' part of forward_flops.
  double selective_flops = 0;  // Products that selective recompute runs again in backward.
  // Deferred weight gradients (Unit::BackwardWeights): bytes saved from Backward on, and the part of
  // forward_flops whose weight gradients they compute.
  int64_t deferred_bytes = 0;
  double deferred_flops = 0;
  // Memory traffic of all other kernels.
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  // Approximate kernel count of a native unit on CUDA; 0: unknown.
  int forward_kernels = 0;
  int backward_kernels = 0;
  std::vector<UnitExchange> exchanges = {};
  // Measured calls, by Recompute. FLOPs and bytes are then those that the engine adds to the calls:
  // engine_flops (the output projection's part of forward_flops), forward_bytes and backward_bytes.
  std::optional<std::array<MeasuredWork, 3>> measured = {};
  double engine_flops = 0;
  // Own parameters whose gradients a compiled backward returns; the engine copies them into buckets.
  std::vector<int> copied_grads = {};
  double lora_scale = 0;  // Factor of the adapters' products.

  int64_t elements() const;  // Own parameters; of partitioned ones the shard.
};

// Adds the memory traffic of the loss, which keeps the logits of one chunk: backward reads them and
// overwrites them with their gradient. The weight gradient is accumulated over chunks.
void AddLossBytes(int64_t tokens, int64_t logits_bytes, int64_t weight_grad_bytes, UnitFacts* unit);

// A contiguous run of units of the model that one stage executes: units [begin, end) in the stage's own
// numbering.
struct UnitRun {
  int begin = 0;
  int end = 0;
  int first_unit = 0;  // Index of `begin` in the whole model; first_block: the same among layers.
  int first_block = 0;
};

// The part of the model that a pipeline stage holds (stage_partition.h). Without pipeline parallelism there
// is one stage, both first and last. Runs are dealt to stages round-robin, so the runs of a stage with
// several (interleaved 1F1B) are `count` apart in the chain.
struct StagePlace {
  int number = 0;
  int count = 1;
  std::vector<UnitRun> runs = {{}};  // With one stage: a single unbounded run.
  int64_t hidden_elements = 0;       // Elements per micro-batch that a rank sends to the next stage.
  DType hidden_type = DType::kFp32;
  bool defers_grads = false;  // Defers weight gradients into the bubble (zero-bubble). Single run only.

  bool first() const { return number == 0; }
  bool last() const { return number + 1 == count; }
  int RunOf(int unit) const {
    int run = 0;
    while (run + 1 < static_cast<int>(runs.size()) && runs[run + 1].begin <= unit) ++run;
    return run;
  }
  // Index of the unit's run in the whole model.
  int ModelRunIndex(int unit) const { return RunOf(unit) * count + number; }
  // The unit's input comes from another stage.
  bool ReceivesInput(int unit) const {
    return count > 1 && !(first() && unit == 0) && runs[RunOf(unit)].begin == unit;
  }
  // The unit's output goes to another stage.
  bool SendsOutput(int unit) const {
    return count > 1 && !(last() && unit + 1 == runs.back().end) && runs[RunOf(unit)].end == unit + 1;
  }
  // Maximum number of forwards through this stage's runs whose backward has not run: the warmup forwards plus
  // one. 1F1B warms up with one forward per later stage. Interleaved 1F1B with R runs needs 2 * (later
  // stages) + (R - 1) * (stages), as in Megatron: the last stage can start its last run only after all stages
  // ran the earlier ones.
  int InFlight(int micro_batches) const {
    const int others = static_cast<int>(runs.size()) - 1, behind = count - 1 - number;
    const int ahead = others == 0 ? behind : 2 * behind + others * count;
    return std::min(micro_batches * (others + 1), ahead + 1);
  }
  // Maximum number of micro-batches with deferred weight gradients while backwards continue.
  int DeferredPasses() const { return defers_grads ? number : 0; }
};

struct ModelFacts {
  std::vector<UnitFacts> units;  // In forward order. The last unit of the last stage computes the loss.
  StagePlace stage = {};
  // Number of expert choice counts per step: one per expert, over all layers of all stages whose selection
  // bias they adjust.
  int64_t choices = 0;

  int64_t elements() const;
};

// Glob match: `*` matches any text, including none; every other character matches itself.
bool MatchesPattern(const std::string& name, const std::string& pattern);

}  // namespace fsdpd

// What the plan must know of a model without building it: units, their parameters' shapes, what a forward
// keeps for backward, and what it costs. fsdp/model builds modules whose parameters have exactly these names,
// shapes and order (its test holds the two together), so the coordinator can plan a job that it cannot run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/plan/model/tensor_partition.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

// The head computes logits and loss for so many tokens at a time, so a vocabulary's logits never exist for a
// whole micro-batch.
constexpr int64_t kLossChunkTokens = 2048;

// CUDA's kernel of attention to documents pads each by so many rows of the fp32 gradient of queries, in
// backward. It is given as many documents at a time as come to so many rows: at least one.
constexpr int64_t kRowsBesideDocument = 128;
constexpr int64_t MostDocumentRows(int64_t tokens) { return 2 * tokens + kRowsBesideDocument; }

// On CUDA each expert's rows begin at a multiple of so many (products of bf16 want half of it), and are at
// least so many: what there is beyond its own is zero.
constexpr int64_t kExpertRowStep = kFp8Step;

// What units tell of their routers, each summed over tokens and layers: how uneven the experts' tokens are,
// the entropy of scores, and the two losses, as v1::StepReport::Routing has them.
constexpr int kRoutingSums = 4;

enum class UnitKind { kEmbedding, kBlock, kHead };

// Of a parameter that units of two stages use (tied embeddings), who has it: the lender's stage, which saves
// it, or the borrower's.
enum class Twin { kNone, kOriginal, kCopy };

// The unit under whose name a parameter is known: `owner`, which only a copy has, or its own.
inline const std::string& OwnerOf(const std::string& unit, const std::string& owner) {
  return owner.empty() ? unit : owner;
}

struct ParamFacts {
  std::string name;            // Within the unit: "attention.wq".
  std::vector<int64_t> shape;  // What a rank has at a time: of one that is cut its slice.
  bool decay = true;        // A matrix; norms and biases are not decayed unless a group of the spec says so.
  double deviation = 0.02;  // A matrix begins as normal(0, deviation).
  // Set by DescribeSpec from the spec's frozen patterns and groups.
  bool trainable = true;
  double weight_decay = 0;
  double lr_scale = 1;
  TensorPartition cut = {};
  bool fixed = false;  // Never trained.
  bool fp8 = false;    // Gathered and multiplied in FP8.
  Twin twin = Twin::kNone;
  std::string owner = {};  // Of a copy, the unit whose parameter it is (OwnerOf).
  // Of a selection bias that each step moves by how often experts were chosen: where these numbers begin
  // among the step's (ModelFacts::choices). Else -1.
  int64_t choices_begin = -1;

  bool balances() const { return choices_begin >= 0; }
  // Inline: plug-ins have units, and link nothing of the plan.
  int64_t elements() const {
    int64_t product = 1;
    for (const int64_t size : shape) product *= size;
    return product;
  }
  int64_t whole_elements() const { return elements() * cut.parts; }
};

// Bytes that a forward of one micro-batch on one rank keeps for its backward, the input included.
struct SavedBytes {
  int64_t none = 0;       // No recompute.
  int64_t selective = 0;  // Without what takes most room for its work.
  int64_t full = 0;       // The input alone.

  int64_t With(Recompute recompute) const;
};

// What a unit does with others of a group through its context (fsdp/model/unit/unit_context.h).
enum class Exchange {
  kSum,      // AllReduce
  kGather,   // AllGather
  kSumPart,  // SendParts
  kSend,     // AllToAll
};
const char* VerbOf(Exchange what);  // "gathers"

// Numbers of one micro-batch: of what is summed, of all ranks' parts together, or of what the rank sends,
// the part for itself included: as much as it is where experts get equally many tokens. Full recompute runs
// the forward's again.
struct UnitExchange {
  Group group = Group::kSelf;
  int64_t forward_elements = 0;
  int64_t backward_elements = 0;
  Exchange what = Exchange::kSum;
  DType type = DType::kFp32;
  int64_t selective_elements = 0;  // Of the forward's, what selective recompute runs again.
};

struct UnitFacts {
  std::string name;  // "embedding", "layer.3", "head"
  UnitKind kind = UnitKind::kBlock;
  std::vector<ParamFacts> params;
  // A unit whose parameters this one uses too (tied embeddings: the head borrows the embedding), or -1. They
  // belong to the lender: it owns, reduces and updates them. A lender comes before its borrower in the chain.
  // Where another stage has the lender, this unit has copies of them among its own instead.
  int borrows = -1;
  // Its backward needs its own parameters. An embedding's does not, so they are not gathered for it.
  bool backward_reads = true;
  // For one micro-batch on one rank:
  SavedBytes saved_bytes = {};
  int64_t workspace_bytes = 0;  // Extra bytes at the unit's own peak, in forward or backward.
  int64_t output_bytes = 0;     // Hidden states that it hands on.
  double forward_flops = 0;     // Of matrix products and attention; causal attention counted half.
  double attention_flops = 0;   // The part of forward_flops that is attention.
  // Of attention that flash attention alone takes on CUDA: how much more work it does, in width that is
  // filled up, than attention_flops says. 0: any kernel takes it.
  double flash_work = 0;
  double repeated_flops = 0;   // The part that other ranks of the unit's axes compute too.
  double fp8_flops = 0;        // The part that is products in FP8.
  double selective_flops = 0;  // Of the products that run again in backward with selective recompute.
  // Of what Unit::BackwardWeights can be left: what it reads, kept from Backward on, and the part of
  // forward_flops whose matrices' gradients it computes.
  int64_t put_off_bytes = 0;
  double put_off_flops = 0;
  // Moved by everything else.
  int64_t forward_bytes = 0;
  int64_t backward_bytes = 0;
  // Of a native unit on CUDA, about so many kernels; 0: not known.
  int forward_kernels = 0;
  int backward_kernels = 0;
  std::vector<UnitExchange> exchanges = {};

  int64_t elements() const;  // Own parameters, of those that are cut a slice.
};

// A stretch of a model's chain that a stage has by itself: units [begin, end) of the stage's own.
struct UnitRun {
  int begin = 0;
  int end = 0;
  int first_unit = 0;  // Its number in the whole chain, as the next among blocks.
  int first_block = 0;
};

// Which units of a model's chain a rank has, where ranks of other stages have the rest (the pipeline axis,
// stage_partition.h). Elsewhere there is one stage, which is the first and the last. The chain's runs go to
// the stages by turns, so a stage with several (interleaved) has those that are as far apart as there are
// stages.
struct StagePlace {
  int number = 0;
  int count = 1;
  std::vector<UnitRun> runs = {{}};  // Of one stage that is all: it has no bounds.
  int64_t hidden_elements = 0;       // Of a micro-batch, that a rank hands on to the next stage.
  DType hidden_type = DType::kFp32;
  bool puts_off = false;  // Gradients of matrices, to where it would wait (zero-bubble). One run alone.

  bool first() const { return number == 0; }
  bool last() const { return number + 1 == count; }
  int RunOf(int unit) const {
    int run = 0;
    while (run + 1 < static_cast<int>(runs.size()) && runs[run + 1].begin <= unit) ++run;
    return run;
  }
  int ChainUnit(int unit) const {
    const UnitRun& run = runs[RunOf(unit)];
    return run.first_unit + unit - run.begin;
  }
  // Its run's, among the runs of all stages.
  int ChainRun(int unit) const { return RunOf(unit) * count + number; }
  // The unit is the first of a run whose input comes from another stage.
  bool Enters(int unit) const {
    return count > 1 && !(first() && unit == 0) && runs[RunOf(unit)].begin == unit;
  }
  // It is the last of one whose output goes there.
  bool Leaves(int unit) const {
    return count > 1 && !(last() && unit + 1 == runs.back().end) && runs[RunOf(unit)].end == unit + 1;
  }
  // So many micro-batches have gone forward through one of the runs and not back, at most: as many as let the
  // last stage begin with its last run, and those behind go on meanwhile.
  int InFlight(int micro_batches) const {
    const int others = static_cast<int>(runs.size()) - 1, behind = count - 1 - number;
    const int ahead = others == 0 ? behind : 2 * behind + others * count;
    return std::min(micro_batches * (others + 1), ahead + 1);
  }
  // Where it puts off: so many micro-batches' gradients of matrices at most while backwards go on.
  int PutOff() const { return puts_off ? number : 0; }
};

struct ModelFacts {
  std::vector<UnitFacts> units;  // In forward order. The last one of the last stage computes the loss.
  StagePlace stage = {};
  // How often a step chose each expert, of all layers of all stages whose selection bias moves by that: so
  // many numbers.
  int64_t choices = 0;

  int64_t elements() const;
};

// Units: "embedding", "layer.0" .. "layer.N-1", "head" (final norm, output projection and loss).
// Parameters in order, [those in brackets] only where the configuration has them:
//   llama  embedding: weight
//          layer:     attention_norm, attention.wq, [attention.bq], attention.wk, [attention.bk],
//                     attention.wv, [attention.bv], [attention.q_norm], [attention.k_norm], attention.wo,
//                     ffn_norm, ffn.w1 (gate), ffn.w3 (up), ffn.w2; with latent attention
//                     attention_norm, attention.wq or attention.wq_a, attention.wkv_a,
//                     [attention.q_a_norm, attention.wq_b], attention.kv_a_norm, attention.wkv_b,
//                     attention.wo, and so on; of a layer with experts
//                     ffn_norm, ffn.router, [ffn.router_bias], ffn.experts.w1, ffn.experts.w3,
//                     ffn.experts.w2, [ffn.shared.w1, ffn.shared.w3, ffn.shared.w2]
//          head:      norm, [output; absent when tied: the head borrows the embedding]
//   gpt2   embedding: weight, positions
//          layer:     attention_norm.weight, attention_norm.bias, attention.wqkv, attention.bqkv,
//                     attention.wo, attention.bo, ffn_norm.weight, ffn_norm.bias, ffn.w1, ffn.b1, ffn.w2,
//                     ffn.b2
//          head:      norm.weight, norm.bias, [output]
// Matrices are [out features, in features], those of a layer's experts one tensor, [experts, out, in]; the
// embedding is [vocab, hidden]. Where ranks share matrices (the tensor axis), those of the heads and of the
// FFN are cut by what they have inside the unit, embedding and output by words, and norms not at all; nor are
// keys and values of which there are fewer heads than ranks.
//   plugin   units and parameters as it says. The first counts as the embedding, the last as the head, those
//            between them as blocks, which recompute; a forward that keeps its input alone keeps what the
//            unit before hands on.
ModelFacts DescribeModel(const ModelConfig& model, int64_t micro_batch, int64_t sequence_length,
                         DType compute);

// The model of a spec, with what the spec says of its parameters: frozen ones, decay and rate by group. A
// parameter's full name, which patterns are matched with, is the unit's name, a dot, and its own.
ModelFacts DescribeSpec(const Spec& spec);

// `*` in `pattern` is any text, the empty one included; everything else is itself.
bool MatchesPattern(const std::string& name, const std::string& pattern);

}  // namespace fsdpd

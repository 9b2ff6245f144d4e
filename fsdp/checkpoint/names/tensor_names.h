// Names and layouts of our models' parameters in other programs: one table, from which all conversions of
// names are derived, in both directions.
//
// Supported: Hugging Face transformers (llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, dots1, deepseek_v2
// and _v3; gpt2), torchtitan's llama and Megatron-Core's GPTModel. Matrices of the first two equal ours with
// two exceptions: GPT-2's are [in, out], and torchtitan rotates adjacent dimensions of a head where we rotate
// its halves, so rows of queries and keys are permuted. A Megatron-Core tensor combines several of our
// parameters: queries, keys and values group by group; all gates and then all ups; and either all layers
// stacked along a leading axis, or one tensor per layer with its number in the name. Transformers stores each
// expert's matrix separately, while we have one tensor per layer: here each expert's matrix is a parameter
// that shares our tensor with the other experts.
//
// The parameters of a package have the names and shapes of the PyTorch model that it was exported from, which
// are those of transformers for a model of transformers.
//
// Pure functions.
#pragma once

#include <absl/strings/string_view.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

enum class Naming {
  kOurs,
  kTransformers,
  kTorchtitan,
  kMegatron,        // Layers stacked along a leading axis.
  kMegatronLayers,  // One tensor per layer.
};

enum class Rearrangement {
  kNone,
  kTransposed,  // Stored as the transpose.
  kPairs,       // Within each head, stored row 2j is our row j, and 2j + 1 is our row j + half.
};

// Elements [ours, ours + numbers) of the flattened parameter are [theirs, theirs + numbers) of the tensor.
struct SharedRun {
  int64_t ours = 0;
  int64_t theirs = 0;
  int64_t numbers = 0;
};

struct NamedParam {
  std::string ours;  // "layer.0.attention.wq"
  std::string theirs;
  std::vector<int64_t> shape;  // Our shape; for an expert, that of its matrix.
  Rearrangement rearrangement = Rearrangement::kNone;
  // If the tensor contains more than this parameter: its shape, and which part is this parameter:
  std::vector<int64_t> of_shape = {};
  std::vector<SharedRun> runs = {};  // Empty: the tensor is the parameter.
  int64_t layer = -1;                // Index along the leading axis; -1: none.
  int64_t ours_begin = 0;            // For an expert: its first element in our flattened tensor.
  // Always fp32: updates of a selection bias are smaller than bf16's resolution.
  bool in_fp32 = false;

  int64_t elements() const;
  std::vector<int64_t> TheirShape() const;
};

// Every parameter of the model, in our order; empty if the naming does not support the model. Parameters that
// share a tensor have the same `theirs`, and together cover all of it.
std::vector<NamedParam> ParamsOf(const ModelConfig& model, Naming naming);

// The prefix of all names except the head's, which is omitted when a model is saved without its head:
// "model.". Empty if there is none.
std::string BodyPrefix(const ModelConfig& model, Naming naming);

// The head's matrix, if it is tied to the embedding: it may be saved under neither name, one, or both.
std::optional<std::string> TiedName(const ModelConfig& model, Naming naming);

// Multi-token prediction layers of DeepSeek-V3, beyond the model's own; these are not trained here.
bool IsOfMoreTokens(const ModelConfig& model, absl::string_view theirs);

// Computed buffers in older files, which are not trained.
bool IsComputed(absl::string_view theirs);

// Converts a matrix of ours, `rows` x `columns`, from its stored layout or (`to_ours` false) to it; `bytes`
// per number, `head_rows` rows per head. REQUIRES: not kNone, and `out` does not overlap `in`.
void Rearrange(Rearrangement rearrangement, bool to_ours, int64_t rows, int64_t columns, int64_t head_rows,
               int64_t bytes, const char* in, char* out);

// Rearrangement::kPairs: the stored row of our row `row`.
int64_t RowInPairs(int64_t row, int64_t head_rows);

// Rows of one head of queries or keys.
int64_t HeadRows(const ModelConfig& model);

}  // namespace fsdpd

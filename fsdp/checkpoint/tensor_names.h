// What others call the parameters of our models, and how they lay them out: one table, from which every
// conversion of names is made, both ways.
//
// Hugging Face's transformers (llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, dots1, deepseek_v2 and _v3;
// gpt2), torchtitan's llama and Megatron-Core's GPTModel are known. Matrices of the first two are ours but
// for two things: GPT-2's are [in, out] there, and torchtitan turns neighbouring dimensions of a head where
// we turn its halves, so rows of queries and keys lie in another order. Megatron-Core's tensors hold several
// of our parameters: queries, keys and values of a group of heads, then of the next; all gates and then all
// ups; and one layer after the other along a leading axis, or each layer for itself with its number in the
// name. Of a layer's experts transformers have each one's matrices for themselves and we all of them as one
// tensor: here every expert's is a parameter, which by our own name shares that tensor with the others.
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
  kMegatron,        // Layers along a leading axis.
  kMegatronLayers,  // Each layer's tensors for themselves.
};

enum class Turn {
  kNone,
  kTransposed,  // Rows are columns there.
  kPairs,       // Within each head, row 2j there is row j here, and 2j + 1 is j + half.
};

// Numbers [ours, ours + numbers) of the flattened parameter are [theirs, theirs + numbers) of the tensor.
struct SharedRun {
  int64_t ours = 0;
  int64_t theirs = 0;
  int64_t numbers = 0;
};

struct NamedParam {
  std::string ours;  // "layer.0.attention.wq"
  std::string theirs;
  std::vector<int64_t> shape;  // Ours; of an expert that of its matrix.
  Turn turn = Turn::kNone;
  // Where the tensor holds more than this parameter, its shape, and which part of it this one is:
  std::vector<int64_t> of_shape = {};
  std::vector<SharedRun> runs = {};  // None: the tensor is the parameter.
  int64_t layer = -1;                // Along the leading axis; -1: there is none.
  int64_t ours_begin = 0;            // Of an expert, its first number in the flattened tensor of ours.
  // Whatever type the others are written in: a selection bias is moved by less than what bf16 tells apart.
  bool in_fp32 = false;

  std::vector<int64_t> TheirShape() const;
};

// Every parameter of the model, in our order; nothing where the naming has no such model. Those that share a
// tensor have the same `theirs`, and together they are all of it.
std::vector<NamedParam> ParamsOf(const ModelConfig& model, Naming naming);

// What stands before the names of all but the head, and is left out when a model is saved without its head:
// "model.". Empty where there is nothing.
std::string BodyPrefix(const ModelConfig& model, Naming naming);

// The head's matrix, where it is the embedding's and so is saved under neither name or both.
std::optional<std::string> TiedName(const ModelConfig& model, Naming naming);

// Of DeepSeek-V3's layers beyond the model's, which predict tokens after the next and are not trained here.
bool IsOfMoreTokens(const ModelConfig& model, absl::string_view theirs);

// Buffers that are computed and not trained, which older files have.
bool IsComputed(absl::string_view theirs);

// A matrix of ours, `rows` x `columns`, from how it lies there and back; `bytes` of one number, `head_rows`
// of one head. REQUIRES: `turn` is not kNone, and `out` does not overlap `in`.
void TurnToOurs(Turn turn, int64_t rows, int64_t columns, int64_t head_rows, int64_t bytes, const char* in,
                char* out);
void TurnToTheirs(Turn turn, int64_t rows, int64_t columns, int64_t head_rows, int64_t bytes, const char* in,
                  char* out);

// Turn::kPairs: where row `row` of ours lies there.
int64_t RowInPairs(int64_t row, int64_t head_rows);

// Rows of one head of queries or keys.
int64_t HeadRows(const ModelConfig& model);

}  // namespace fsdpd

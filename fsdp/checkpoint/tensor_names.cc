#include "fsdp/checkpoint/tensor_names.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

// `#` is the layer's number. Of theirs: null where it has none.
struct Row {
  const char* ours;
  const char* transformers;
  const char* torchtitan;
  Turn turn_transformers = Turn::kNone;
  Turn turn_torchtitan = Turn::kNone;
};

constexpr Row kLlama[] = {
    {"embedding.weight", "model.embed_tokens.weight", "tok_embeddings.weight"},
    {"layer.#.attention_norm", "model.layers.#.input_layernorm.weight", "layers.#.attention_norm.weight"},
    {"layer.#.attention.wq", "model.layers.#.self_attn.q_proj.weight", "layers.#.attention.wq.weight",
     Turn::kNone, Turn::kPairs},
    {"layer.#.attention.bq", "model.layers.#.self_attn.q_proj.bias", nullptr},
    {"layer.#.attention.wk", "model.layers.#.self_attn.k_proj.weight", "layers.#.attention.wk.weight",
     Turn::kNone, Turn::kPairs},
    {"layer.#.attention.bk", "model.layers.#.self_attn.k_proj.bias", nullptr},
    {"layer.#.attention.wv", "model.layers.#.self_attn.v_proj.weight", "layers.#.attention.wv.weight"},
    {"layer.#.attention.bv", "model.layers.#.self_attn.v_proj.bias", nullptr},
    {"layer.#.attention.q_norm", "model.layers.#.self_attn.q_norm.weight", nullptr},
    {"layer.#.attention.k_norm", "model.layers.#.self_attn.k_norm.weight", nullptr},
    {"layer.#.attention.wo", "model.layers.#.self_attn.o_proj.weight", "layers.#.attention.wo.weight"},
    {"layer.#.ffn_norm", "model.layers.#.post_attention_layernorm.weight", "layers.#.ffn_norm.weight"},
    {"layer.#.ffn.w1", "model.layers.#.mlp.gate_proj.weight", "layers.#.feed_forward.w1.weight"},
    {"layer.#.ffn.w3", "model.layers.#.mlp.up_proj.weight", "layers.#.feed_forward.w3.weight"},
    {"layer.#.ffn.w2", "model.layers.#.mlp.down_proj.weight", "layers.#.feed_forward.w2.weight"},
    {"head.norm", "model.norm.weight", "norm.weight"},
    {"head.output", "lm_head.weight", "output.weight"},
};

constexpr Row kGpt2[] = {
    {"embedding.weight", "transformer.wte.weight", nullptr},
    {"embedding.positions", "transformer.wpe.weight", nullptr},
    {"layer.#.attention_norm.weight", "transformer.h.#.ln_1.weight", nullptr},
    {"layer.#.attention_norm.bias", "transformer.h.#.ln_1.bias", nullptr},
    {"layer.#.attention.wqkv", "transformer.h.#.attn.c_attn.weight", nullptr, Turn::kTransposed},
    {"layer.#.attention.bqkv", "transformer.h.#.attn.c_attn.bias", nullptr},
    {"layer.#.attention.wo", "transformer.h.#.attn.c_proj.weight", nullptr, Turn::kTransposed},
    {"layer.#.attention.bo", "transformer.h.#.attn.c_proj.bias", nullptr},
    {"layer.#.ffn_norm.weight", "transformer.h.#.ln_2.weight", nullptr},
    {"layer.#.ffn_norm.bias", "transformer.h.#.ln_2.bias", nullptr},
    {"layer.#.ffn.w1", "transformer.h.#.mlp.c_fc.weight", nullptr, Turn::kTransposed},
    {"layer.#.ffn.b1", "transformer.h.#.mlp.c_fc.bias", nullptr},
    {"layer.#.ffn.w2", "transformer.h.#.mlp.c_proj.weight", nullptr, Turn::kTransposed},
    {"layer.#.ffn.b2", "transformer.h.#.mlp.c_proj.bias", nullptr},
    {"head.norm.weight", "transformer.ln_f.weight", nullptr},
    {"head.norm.bias", "transformer.ln_f.bias", nullptr},
    {"head.output", "lm_head.weight", nullptr},
};

constexpr absl::string_view kLayer = "layer.";
// Ends of names.
constexpr absl::string_view kComputed[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                           "freqs_cis"};

struct Table {
  const Row* begin = nullptr;
  const Row* end = nullptr;
};

Table TableOf(const ModelConfig& model) {
  if (std::holds_alternative<LlamaConfig>(model)) return {std::begin(kLlama), std::end(kLlama)};
  if (std::holds_alternative<Gpt2Config>(model)) return {std::begin(kGpt2), std::end(kGpt2)};
  return {};
}

const char* NameIn(const Row& row, Naming naming) {
  switch (naming) {
    case Naming::kOurs:
      return row.ours;
    case Naming::kTransformers:
      return row.transformers;
    case Naming::kTorchtitan:
      return row.torchtitan;
  }
  return nullptr;
}

Turn TurnIn(const Row& row, Naming naming) {
  return naming == Naming::kTransformers ? row.turn_transformers
         : naming == Naming::kTorchtitan ? row.turn_torchtitan
                                         : Turn::kNone;
}

const Row* FindRow(const Table& table, const std::string& ours) {
  const Row* found = std::find_if(table.begin, table.end, [&](const Row& row) { return row.ours == ours; });
  return found == table.end ? nullptr : found;
}

bool IsTied(const ModelConfig& model) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  return (llama != nullptr && llama->tied_embeddings) || (gpt2 != nullptr && gpt2->tied_embeddings);
}

void Transpose(int64_t rows, int64_t columns, int64_t bytes, const char* in, char* out) {
  // In squares, so that both sides stay in the cache.
  constexpr int64_t kSide = 32;
  for (int64_t r = 0; r < rows; r += kSide) {
    for (int64_t c = 0; c < columns; c += kSide) {
      for (int64_t i = r; i < std::min(rows, r + kSide); ++i) {
        for (int64_t j = c; j < std::min(columns, c + kSide); ++j) {
          std::memcpy(out + (j * rows + i) * bytes, in + (i * columns + j) * bytes, bytes);
        }
      }
    }
  }
}

}  // namespace

std::vector<int64_t> NamedParam::TheirShape() const {
  return turn == Turn::kTransposed ? std::vector<int64_t>(shape.rbegin(), shape.rend()) : shape;
}

std::vector<NamedParam> ParamsOf(const ModelConfig& model, Naming naming) {
  const Table table = TableOf(model);
  if (table.begin == table.end) return {};
  std::vector<NamedParam> params;
  for (const UnitFacts& unit : DescribeModel(model, 1, 1, DType::kFp32).units) {
    const bool in_layer = absl::StartsWith(unit.name, kLayer);
    const std::string number = in_layer ? unit.name.substr(kLayer.size()) : "";
    for (const ParamFacts& param : unit.params) {
      const std::string ours = absl::StrCat(unit.name, ".", param.name);
      const Row* row = FindRow(table, absl::StrCat(in_layer ? "layer.#" : unit.name, ".", param.name));
      if (row == nullptr || NameIn(*row, naming) == nullptr) return {};
      params.push_back({ours, absl::StrReplaceAll(NameIn(*row, naming), {{"#", number}}), param.shape,
                        TurnIn(*row, naming)});
    }
  }
  return params;
}

std::string BodyPrefix(const ModelConfig& model, Naming naming) {
  if (naming != Naming::kTransformers) return "";
  return std::holds_alternative<Gpt2Config>(model) ? "transformer." : "model.";
}

std::optional<std::string> TiedName(const ModelConfig& model, Naming naming) {
  const Row* row = IsTied(model) ? FindRow(TableOf(model), "head.output") : nullptr;
  if (row == nullptr || NameIn(*row, naming) == nullptr) return std::nullopt;
  return NameIn(*row, naming);
}

bool IsComputed(absl::string_view theirs) {
  return std::any_of(std::begin(kComputed), std::end(kComputed),
                     [theirs](absl::string_view end) { return absl::EndsWith(theirs, end); });
}

void TurnToOurs(Turn turn, int64_t rows, int64_t columns, int64_t head_rows, int64_t bytes, const char* in,
                char* out) {
  FSDPD_CHECK(turn != Turn::kNone);
  if (turn == Turn::kTransposed) return Transpose(columns, rows, bytes, in, out);
  const int64_t row_bytes = columns * bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + row * row_bytes, in + RowInPairs(row, head_rows) * row_bytes, row_bytes);
  }
}

void TurnToTheirs(Turn turn, int64_t rows, int64_t columns, int64_t head_rows, int64_t bytes, const char* in,
                  char* out) {
  FSDPD_CHECK(turn != Turn::kNone);
  if (turn == Turn::kTransposed) return Transpose(rows, columns, bytes, in, out);
  const int64_t row_bytes = columns * bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + RowInPairs(row, head_rows) * row_bytes, in + row * row_bytes, row_bytes);
  }
}

int64_t RowInPairs(int64_t row, int64_t head_rows) {
  const int64_t within = row % head_rows, half = head_rows / 2;
  return row - within + (within < half ? 2 * within : 2 * (within - half) + 1);
}

int64_t HeadRows(const ModelConfig& model) {
  if (const auto* llama = std::get_if<LlamaConfig>(&model)) return llama->head_size;
  if (const auto* gpt2 = std::get_if<Gpt2Config>(&model)) return gpt2->head_size();
  return 1;
}

}  // namespace fsdpd

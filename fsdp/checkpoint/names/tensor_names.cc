#include "fsdp/checkpoint/names/tensor_names.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <variant>

#include "base/check.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

// Which part of a Megatron-Core layer tensor a parameter is.
enum class Part { kWhole, kQueries, kKeys, kValues, kQueriesKeysValues, kGates, kUps };

// `#` is the layer index; for Megatron-Core it applies if each layer has its own tensor. `@` is an expert's
// index. Null if the naming does not have the parameter.
struct Row {
  const char* ours;
  const char* transformers;
  const char* torchtitan;
  const char* megatron;
  Rearrangement turn_transformers = Rearrangement::kNone;
  Rearrangement turn_torchtitan = Rearrangement::kNone;
  Part part_megatron = Part::kWhole;
  bool in_fp32 = false;
};

constexpr Row kLlama[] = {
    {"embedding.weight", "model.embed_tokens.weight", "tok_embeddings.weight",
     "embedding.word_embeddings.weight"},
    {"layer.#.attention_norm", "model.layers.#.input_layernorm.weight", "layers.#.attention_norm.weight",
     "decoder.layers.#.self_attention.linear_qkv.layer_norm_weight"},
    {"layer.#.attention.wq", "model.layers.#.self_attn.q_proj.weight", "layers.#.attention.wq.weight",
     "decoder.layers.#.self_attention.linear_qkv.weight", Rearrangement::kNone, Rearrangement::kPairs,
     Part::kQueries},
    {"layer.#.attention.bq", "model.layers.#.self_attn.q_proj.bias", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.bias", Rearrangement::kNone, Rearrangement::kNone,
     Part::kQueries},
    {"layer.#.attention.wk", "model.layers.#.self_attn.k_proj.weight", "layers.#.attention.wk.weight",
     "decoder.layers.#.self_attention.linear_qkv.weight", Rearrangement::kNone, Rearrangement::kPairs,
     Part::kKeys},
    {"layer.#.attention.bk", "model.layers.#.self_attn.k_proj.bias", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.bias", Rearrangement::kNone, Rearrangement::kNone,
     Part::kKeys},
    {"layer.#.attention.wv", "model.layers.#.self_attn.v_proj.weight", "layers.#.attention.wv.weight",
     "decoder.layers.#.self_attention.linear_qkv.weight", Rearrangement::kNone, Rearrangement::kNone,
     Part::kValues},
    {"layer.#.attention.bv", "model.layers.#.self_attn.v_proj.bias", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.bias", Rearrangement::kNone, Rearrangement::kNone,
     Part::kValues},
    {"layer.#.attention.q_norm", "model.layers.#.self_attn.q_norm.weight", nullptr,
     "decoder.layers.#.self_attention.q_layernorm.weight"},
    {"layer.#.attention.k_norm", "model.layers.#.self_attn.k_norm.weight", nullptr,
     "decoder.layers.#.self_attention.k_layernorm.weight"},
    {"layer.#.attention.wo", "model.layers.#.self_attn.o_proj.weight", "layers.#.attention.wo.weight",
     "decoder.layers.#.self_attention.linear_proj.weight"},
    {"layer.#.ffn_norm", "model.layers.#.post_attention_layernorm.weight", "layers.#.ffn_norm.weight",
     "decoder.layers.#.mlp.linear_fc1.layer_norm_weight"},
    {"layer.#.ffn.w1", "model.layers.#.mlp.gate_proj.weight", "layers.#.feed_forward.w1.weight",
     "decoder.layers.#.mlp.linear_fc1.weight", Rearrangement::kNone, Rearrangement::kNone, Part::kGates},
    {"layer.#.ffn.w3", "model.layers.#.mlp.up_proj.weight", "layers.#.feed_forward.w3.weight",
     "decoder.layers.#.mlp.linear_fc1.weight", Rearrangement::kNone, Rearrangement::kNone, Part::kUps},
    {"layer.#.ffn.w2", "model.layers.#.mlp.down_proj.weight", "layers.#.feed_forward.w2.weight",
     "decoder.layers.#.mlp.linear_fc2.weight"},
    {"head.norm", "model.norm.weight", "norm.weight", "decoder.final_layernorm.weight"},
    {"head.output", "lm_head.weight", "output.weight", "output_layer.weight"},
};

// Additional rows for latent attention, in place of queries, keys and values.
constexpr Row kLatent[] = {
    {"layer.#.attention.wq_a", "model.layers.#.self_attn.q_a_proj.weight", nullptr, nullptr},
    {"layer.#.attention.q_a_norm", "model.layers.#.self_attn.q_a_layernorm.weight", nullptr, nullptr},
    {"layer.#.attention.wq_b", "model.layers.#.self_attn.q_b_proj.weight", nullptr, nullptr},
    {"layer.#.attention.wkv_a", "model.layers.#.self_attn.kv_a_proj_with_mqa.weight", nullptr, nullptr},
    {"layer.#.attention.kv_a_norm", "model.layers.#.self_attn.kv_a_layernorm.weight", nullptr, nullptr},
    {"layer.#.attention.wkv_b", "model.layers.#.self_attn.kv_b_proj.weight", nullptr, nullptr},
};

// Additional rows for experts: Qwen3-MoE's, those of dots1, and Mixtral's where they differ.
constexpr Row kExperts[] = {
    {"layer.#.ffn.router", "model.layers.#.mlp.gate.weight", nullptr, nullptr},
    {"layer.#.ffn.router_bias", "model.layers.#.mlp.gate.e_score_correction_bias", nullptr, nullptr,
     Rearrangement::kNone, Rearrangement::kNone, Part::kWhole, /*in_fp32=*/true},
    {"layer.#.ffn.shared.w1", "model.layers.#.mlp.shared_experts.gate_proj.weight", nullptr, nullptr},
    {"layer.#.ffn.shared.w3", "model.layers.#.mlp.shared_experts.up_proj.weight", nullptr, nullptr},
    {"layer.#.ffn.shared.w2", "model.layers.#.mlp.shared_experts.down_proj.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w1", "model.layers.#.mlp.experts.@.gate_proj.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w3", "model.layers.#.mlp.experts.@.up_proj.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w2", "model.layers.#.mlp.experts.@.down_proj.weight", nullptr, nullptr},
};
constexpr Row kMixtral[] = {
    {"layer.#.ffn.router", "model.layers.#.block_sparse_moe.gate.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w1", "model.layers.#.block_sparse_moe.experts.@.w1.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w3", "model.layers.#.block_sparse_moe.experts.@.w3.weight", nullptr, nullptr},
    {"layer.#.ffn.experts.w2", "model.layers.#.block_sparse_moe.experts.@.w2.weight", nullptr, nullptr},
};

constexpr Row kGpt2[] = {
    {"embedding.weight", "transformer.wte.weight", nullptr, "embedding.word_embeddings.weight"},
    {"embedding.positions", "transformer.wpe.weight", nullptr, "embedding.position_embeddings.weight"},
    {"layer.#.attention_norm.weight", "transformer.h.#.ln_1.weight", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.layer_norm_weight"},
    {"layer.#.attention_norm.bias", "transformer.h.#.ln_1.bias", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.layer_norm_bias"},
    {"layer.#.attention.wqkv", "transformer.h.#.attn.c_attn.weight", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.weight", Rearrangement::kTransposed, Rearrangement::kNone,
     Part::kQueriesKeysValues},
    {"layer.#.attention.bqkv", "transformer.h.#.attn.c_attn.bias", nullptr,
     "decoder.layers.#.self_attention.linear_qkv.bias", Rearrangement::kNone, Rearrangement::kNone,
     Part::kQueriesKeysValues},
    {"layer.#.attention.wo", "transformer.h.#.attn.c_proj.weight", nullptr,
     "decoder.layers.#.self_attention.linear_proj.weight", Rearrangement::kTransposed},
    {"layer.#.attention.bo", "transformer.h.#.attn.c_proj.bias", nullptr,
     "decoder.layers.#.self_attention.linear_proj.bias"},
    {"layer.#.ffn_norm.weight", "transformer.h.#.ln_2.weight", nullptr,
     "decoder.layers.#.mlp.linear_fc1.layer_norm_weight"},
    {"layer.#.ffn_norm.bias", "transformer.h.#.ln_2.bias", nullptr,
     "decoder.layers.#.mlp.linear_fc1.layer_norm_bias"},
    {"layer.#.ffn.w1", "transformer.h.#.mlp.c_fc.weight", nullptr, "decoder.layers.#.mlp.linear_fc1.weight",
     Rearrangement::kTransposed},
    {"layer.#.ffn.b1", "transformer.h.#.mlp.c_fc.bias", nullptr, "decoder.layers.#.mlp.linear_fc1.bias"},
    {"layer.#.ffn.w2", "transformer.h.#.mlp.c_proj.weight", nullptr, "decoder.layers.#.mlp.linear_fc2.weight",
     Rearrangement::kTransposed},
    {"layer.#.ffn.b2", "transformer.h.#.mlp.c_proj.bias", nullptr, "decoder.layers.#.mlp.linear_fc2.bias"},
    {"head.norm.weight", "transformer.ln_f.weight", nullptr, "decoder.final_layernorm.weight"},
    {"head.norm.bias", "transformer.ln_f.bias", nullptr, "decoder.final_layernorm.bias"},
    {"head.output", "lm_head.weight", nullptr, "output_layer.weight"},
};

constexpr absl::string_view kLayer = "layer.";
// Suffixes.
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
    case Naming::kMegatron:
    case Naming::kMegatronLayers:
      return row.megatron;
  }
  return nullptr;
}

Rearrangement TurnIn(const Row& row, Naming naming) {
  return naming == Naming::kTransformers ? row.turn_transformers
         : naming == Naming::kTorchtitan ? row.turn_torchtitan
                                         : Rearrangement::kNone;
}

const Row* FindRow(const Table& table, const std::string& ours) {
  const Row* found = std::find_if(table.begin, table.end, [&](const Row& row) { return row.ours == ours; });
  return found == table.end ? nullptr : found;
}

// Null if no table has such a parameter.
const Row* RowOf(const ModelConfig& model, const std::string& ours) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  if (llama != nullptr && llama->experts.count > 0) {
    const bool mixtral = TransformersType(*llama) == "mixtral";
    const Table experts = mixtral ? Table{std::begin(kMixtral), std::end(kMixtral)}
                                  : Table{std::begin(kExperts), std::end(kExperts)};
    if (const Row* row = FindRow(experts, ours)) return row;
  }
  if (llama != nullptr && llama->latent) {
    if (const Row* row = FindRow({std::begin(kLatent), std::end(kLatent)}, ours)) return row;
  }
  return FindRow(TableOf(model), ours);
}

bool IsTied(const ModelConfig& model) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  return (llama != nullptr && llama->tied_embeddings) || (gpt2 != nullptr && gpt2->tied_embeddings);
}

int64_t LayersOf(const ModelConfig& model) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  return llama != nullptr ? llama->layers : gpt2 != nullptr ? gpt2->layers : 0;
}

// Head groups of Megatron-Core: the queries of a group, then its key and its value.
struct HeadGroups {
  int64_t groups = 1;
  int64_t queries = 1;  // Heads per group.
  int64_t head_rows = 1;

  int64_t rows() const { return (queries + 2) * head_rows; }  // Per group.
};

HeadGroups HeadGroupsOf(const ModelConfig& model) {
  if (const auto* llama = std::get_if<LlamaConfig>(&model)) {
    return {llama->kv_heads, llama->heads / llama->kv_heads, llama->head_size};
  }
  const auto* gpt2 = std::get_if<Gpt2Config>(&model);
  FSDPD_CHECK(gpt2 != nullptr);
  return {gpt2->heads, 1, gpt2->head_size()};
}

// In rows, within a single layer's tensor.
std::vector<SharedRun> RunsOf(Part part, const HeadGroups& heads, int64_t rows) {
  if (part == Part::kWhole || part == Part::kGates) return {{0, 0, rows}};
  if (part == Part::kUps) return {{0, rows, rows}};
  const int64_t queries = heads.queries * heads.head_rows;
  std::vector<SharedRun> runs;
  const auto add = [&](int64_t ours, int64_t within, int64_t count) {  // Consecutive in ours.
    for (int64_t group = 0; group < heads.groups; ++group) {
      runs.push_back({ours + group * count, group * heads.rows() + within, count});
    }
  };
  const bool all = part == Part::kQueriesKeysValues;
  if (all || part == Part::kQueries) add(0, 0, queries);
  const int64_t keys = all ? heads.groups * queries : 0;
  if (all || part == Part::kKeys) add(keys, queries, heads.head_rows);
  const int64_t values = all ? keys + heads.groups * heads.head_rows : 0;
  if (all || part == Part::kValues) add(values, queries + heads.head_rows, heads.head_rows);
  return runs;
}

int64_t RowsOfTensor(Part part, const HeadGroups& heads, int64_t rows) {
  if (part == Part::kWhole) return rows;
  return part == Part::kGates || part == Part::kUps ? 2 * rows : heads.groups * heads.rows();
}

// Makes `param`, whose name still contains `#`, a part of Megatron-Core's tensor. `layer`: -1 if it is
// outside of layers.
void PlaceInMegatron(const ModelConfig& model, Part part, int64_t layer, int64_t layers, NamedParam* param) {
  const HeadGroups heads = HeadGroupsOf(model);
  int64_t columns = 1;
  for (size_t i = 1; i < param->shape.size(); ++i) columns *= param->shape[i];
  const int64_t rows = RowsOfTensor(part, heads, param->shape[0]);
  const bool stacked = layer >= 0 && layers > 0;
  if (part == Part::kWhole && !stacked) return;
  param->of_shape = param->shape;
  param->of_shape[0] = rows;
  if (stacked) {
    param->of_shape.insert(param->of_shape.begin(), layers);
    param->layer = layer;
  }
  for (SharedRun run : RunsOf(part, heads, param->shape[0])) {
    if (stacked) run.theirs += layer * rows;
    param->runs.push_back({run.ours * columns, run.theirs * columns, run.numbers * columns});
  }
}

// Adds the matrix of each expert, for `all`, whose name contains `@`.
void AddExperts(const NamedParam& all, Naming naming, std::vector<NamedParam>* params) {
  NamedParam param = all;
  param.shape.erase(param.shape.begin());
  const int64_t numbers = param.shape[0] * param.shape[1];
  for (int64_t expert = 0; expert < all.shape[0]; ++expert) {
    param.ours_begin = expert * numbers;
    if (naming == Naming::kOurs) {
      param.of_shape = all.shape;
      param.runs = {{0, param.ours_begin, numbers}};
    } else {
      param.theirs = absl::StrReplaceAll(all.theirs, {{"@", absl::StrCat(expert)}});
    }
    params->push_back(param);
  }
}

void Transpose(int64_t rows, int64_t columns, int64_t bytes, const char* in, char* out) {
  // In blocks, so that both sides stay in the cache.
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
  if (!runs.empty()) return of_shape;
  return rearrangement == Rearrangement::kTransposed ? std::vector<int64_t>(shape.rbegin(), shape.rend())
                                                     : shape;
}

std::vector<NamedParam> ParamsOf(const ModelConfig& model, Naming naming) {
  const Table table = TableOf(model);
  if (table.begin == table.end) return {};
  const bool megatron = naming == Naming::kMegatron || naming == Naming::kMegatronLayers;
  const int64_t stacked_layers = naming == Naming::kMegatron ? LayersOf(model) : 0;
  std::vector<NamedParam> params;
  for (const UnitFacts& unit : DescribeModel(model, 1, 1, DType::kFp32).units) {
    const bool in_layer = absl::StartsWith(unit.name, kLayer);
    const std::string number = in_layer ? unit.name.substr(kLayer.size()) : "";
    for (const ParamFacts& param : unit.params) {
      const std::string ours = absl::StrCat(unit.name, ".", param.name);
      const Row* row = RowOf(model, absl::StrCat(in_layer ? "layer.#" : unit.name, ".", param.name));
      if (row == nullptr || NameIn(*row, naming) == nullptr) return {};
      const std::string theirs = naming == Naming::kMegatron
                                     ? absl::StrReplaceAll(row->megatron, {{"#.", ""}})
                                     : absl::StrReplaceAll(NameIn(*row, naming), {{"#", number}});
      NamedParam named = {ours, theirs, param.shape, TurnIn(*row, naming)};
      named.in_fp32 = row->in_fp32;
      if (param.shape.size() == 3) {
        AddExperts(named, naming, &params);
        continue;
      }
      params.push_back(named);
      if (!megatron) continue;
      int64_t layer = -1;
      FSDPD_CHECK(!in_layer || absl::SimpleAtoi(number, &layer));
      PlaceInMegatron(model, row->part_megatron, layer, stacked_layers, &params.back());
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

bool IsOfMoreTokens(const ModelConfig& model, absl::string_view theirs) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  constexpr absl::string_view kLayers = "model.layers.";
  int64_t layer = -1;
  return llama != nullptr && llama->latent && absl::ConsumePrefix(&theirs, kLayers) &&
         absl::SimpleAtoi(theirs.substr(0, theirs.find('.')), &layer) && layer >= llama->layers;
}

bool IsComputed(absl::string_view theirs) {
  return std::any_of(std::begin(kComputed), std::end(kComputed),
                     [theirs](absl::string_view end) { return absl::EndsWith(theirs, end); });
}

void ToOurLayout(Rearrangement rearrangement, int64_t rows, int64_t columns, int64_t head_rows, int64_t bytes,
                 const char* in, char* out) {
  FSDPD_CHECK(rearrangement != Rearrangement::kNone);
  if (rearrangement == Rearrangement::kTransposed) return Transpose(columns, rows, bytes, in, out);
  const int64_t row_bytes = columns * bytes;
  for (int64_t row = 0; row < rows; ++row) {
    std::memcpy(out + row * row_bytes, in + RowInPairs(row, head_rows) * row_bytes, row_bytes);
  }
}

void ToTheirLayout(Rearrangement rearrangement, int64_t rows, int64_t columns, int64_t head_rows,
                   int64_t bytes, const char* in, char* out) {
  FSDPD_CHECK(rearrangement != Rearrangement::kNone);
  if (rearrangement == Rearrangement::kTransposed) return Transpose(rows, columns, bytes, in, out);
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

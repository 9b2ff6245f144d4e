#include "fsdp/checkpoint/names/tensor_names.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/strip.h>
#include <absl/types/span.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <variant>

#include "base/check.h"
#include "fsdp/plan/model/describe_model.h"
#include "fsdp/plan/model/described_units.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

// Which part of a Megatron-Core layer tensor a parameter is.
enum class Part { kWhole, kQueries, kKeys, kValues, kQueriesKeysValues, kGates, kUps };

// A parameter's name in each naming. `#.` stands for the prefix of a layer, `@` for an expert's index. Null
// if the naming does not have the parameter.
struct Row {
  const char* ours;
  const char* transformers;
  const char* megatron = nullptr;
  const char* torchtitan = nullptr;
  Part part = Part::kWhole;                            // Of Megatron-Core's tensor.
  Rearrangement rearrangement = Rearrangement::kNone;  // kTransposed: in transformers; kPairs: in torchtitan.
  bool in_fp32 = false;
};

constexpr Rearrangement kNone = Rearrangement::kNone, kPairs = Rearrangement::kPairs,
                        kTransposed = Rearrangement::kTransposed;

constexpr Row kLlama[] = {
    {"embedding.weight", "model.embed_tokens.weight", "embedding.word_embeddings.weight",
     "tok_embeddings.weight"},
    {"#.attention_norm", "#.input_layernorm.weight", "#.self_attention.linear_qkv.layer_norm_weight",
     "#.attention_norm.weight"},
    {"#.attention.wq", "#.self_attn.q_proj.weight", "#.self_attention.linear_qkv.weight",
     "#.attention.wq.weight", Part::kQueries, kPairs},
    {"#.attention.bq", "#.self_attn.q_proj.bias", "#.self_attention.linear_qkv.bias", nullptr,
     Part::kQueries},
    {"#.attention.wk", "#.self_attn.k_proj.weight", "#.self_attention.linear_qkv.weight",
     "#.attention.wk.weight", Part::kKeys, kPairs},
    {"#.attention.bk", "#.self_attn.k_proj.bias", "#.self_attention.linear_qkv.bias", nullptr, Part::kKeys},
    {"#.attention.wv", "#.self_attn.v_proj.weight", "#.self_attention.linear_qkv.weight",
     "#.attention.wv.weight", Part::kValues},
    {"#.attention.bv", "#.self_attn.v_proj.bias", "#.self_attention.linear_qkv.bias", nullptr, Part::kValues},
    {"#.attention.q_norm", "#.self_attn.q_norm.weight", "#.self_attention.q_layernorm.weight"},
    {"#.attention.k_norm", "#.self_attn.k_norm.weight", "#.self_attention.k_layernorm.weight"},
    {"#.attention.wo", "#.self_attn.o_proj.weight", "#.self_attention.linear_proj.weight",
     "#.attention.wo.weight"},
    {"#.ffn_norm", "#.post_attention_layernorm.weight", "#.mlp.linear_fc1.layer_norm_weight",
     "#.ffn_norm.weight"},
    {"#.ffn.w1", "#.mlp.gate_proj.weight", "#.mlp.linear_fc1.weight", "#.feed_forward.w1.weight",
     Part::kGates},
    {"#.ffn.w3", "#.mlp.up_proj.weight", "#.mlp.linear_fc1.weight", "#.feed_forward.w3.weight", Part::kUps},
    {"#.ffn.w2", "#.mlp.down_proj.weight", "#.mlp.linear_fc2.weight", "#.feed_forward.w2.weight"},
    {"head.norm", "model.norm.weight", "decoder.final_layernorm.weight", "norm.weight"},
    {"head.output", "lm_head.weight", "output_layer.weight", "output.weight"},
};

// Additional rows for latent attention, in place of queries, keys and values.
constexpr Row kLatent[] = {
    {"#.attention.wq_a", "#.self_attn.q_a_proj.weight"},
    {"#.attention.q_a_norm", "#.self_attn.q_a_layernorm.weight"},
    {"#.attention.wq_b", "#.self_attn.q_b_proj.weight"},
    {"#.attention.wkv_a", "#.self_attn.kv_a_proj_with_mqa.weight"},
    {"#.attention.kv_a_norm", "#.self_attn.kv_a_layernorm.weight"},
    {"#.attention.wkv_b", "#.self_attn.kv_b_proj.weight"},
};

// Additional rows for experts: Qwen3-MoE's, those of dots1, and Mixtral's where they differ.
constexpr Row kExperts[] = {
    {"#.ffn.router", "#.mlp.gate.weight"},
    {"#.ffn.router_bias", "#.mlp.gate.e_score_correction_bias", nullptr, nullptr, Part::kWhole, kNone,
     /*in_fp32=*/true},
    {"#.ffn.shared.w1", "#.mlp.shared_experts.gate_proj.weight"},
    {"#.ffn.shared.w3", "#.mlp.shared_experts.up_proj.weight"},
    {"#.ffn.shared.w2", "#.mlp.shared_experts.down_proj.weight"},
    {"#.ffn.experts.w1", "#.mlp.experts.@.gate_proj.weight"},
    {"#.ffn.experts.w3", "#.mlp.experts.@.up_proj.weight"},
    {"#.ffn.experts.w2", "#.mlp.experts.@.down_proj.weight"},
};
constexpr Row kMixtral[] = {
    {"#.ffn.router", "#.block_sparse_moe.gate.weight"},
    {"#.ffn.experts.w1", "#.block_sparse_moe.experts.@.w1.weight"},
    {"#.ffn.experts.w3", "#.block_sparse_moe.experts.@.w3.weight"},
    {"#.ffn.experts.w2", "#.block_sparse_moe.experts.@.w2.weight"},
};

constexpr Row kGpt2[] = {
    {"embedding.weight", "transformer.wte.weight", "embedding.word_embeddings.weight"},
    {"embedding.positions", "transformer.wpe.weight", "embedding.position_embeddings.weight"},
    {"#.attention_norm.weight", "#.ln_1.weight", "#.self_attention.linear_qkv.layer_norm_weight"},
    {"#.attention_norm.bias", "#.ln_1.bias", "#.self_attention.linear_qkv.layer_norm_bias"},
    {"#.attention.wqkv", "#.attn.c_attn.weight", "#.self_attention.linear_qkv.weight", nullptr,
     Part::kQueriesKeysValues, kTransposed},
    {"#.attention.bqkv", "#.attn.c_attn.bias", "#.self_attention.linear_qkv.bias", nullptr,
     Part::kQueriesKeysValues},
    {"#.attention.wo", "#.attn.c_proj.weight", "#.self_attention.linear_proj.weight", nullptr, Part::kWhole,
     kTransposed},
    {"#.attention.bo", "#.attn.c_proj.bias", "#.self_attention.linear_proj.bias"},
    {"#.ffn_norm.weight", "#.ln_2.weight", "#.mlp.linear_fc1.layer_norm_weight"},
    {"#.ffn_norm.bias", "#.ln_2.bias", "#.mlp.linear_fc1.layer_norm_bias"},
    {"#.ffn.w1", "#.mlp.c_fc.weight", "#.mlp.linear_fc1.weight", nullptr, Part::kWhole, kTransposed},
    {"#.ffn.b1", "#.mlp.c_fc.bias", "#.mlp.linear_fc1.bias"},
    {"#.ffn.w2", "#.mlp.c_proj.weight", "#.mlp.linear_fc2.weight", nullptr, Part::kWhole, kTransposed},
    {"#.ffn.b2", "#.mlp.c_proj.bias", "#.mlp.linear_fc2.bias"},
    {"head.norm.weight", "transformer.ln_f.weight", "decoder.final_layernorm.weight"},
    {"head.norm.bias", "transformer.ln_f.bias", "decoder.final_layernorm.bias"},
    {"head.output", "lm_head.weight", "output_layer.weight"},
};

constexpr char kLayer[] = "layer.", kMegatronLayer[] = "decoder.layers.";
// Suffixes.
constexpr absl::string_view kComputed[] = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                           "freqs_cis"};

using Table = absl::Span<const Row>;

Table TableOf(const ModelConfig& model) {
  if (std::holds_alternative<LlamaConfig>(model)) return kLlama;
  return std::holds_alternative<Gpt2Config>(model) ? Table(kGpt2) : Table();
}

// Null if the naming does not have the parameter. Of Megatron-Core's two, only the layers' prefixes differ.
const char* NameIn(const Row& row, Naming naming) {
  const char* const names[] = {row.ours, row.transformers, row.torchtitan, row.megatron, row.megatron};
  return names[static_cast<size_t>(naming)];
}

// Of all names in a layer.
std::string LayerPrefix(const ModelConfig& model, Naming naming, const std::string& number) {
  const bool gpt2 = std::holds_alternative<Gpt2Config>(model);
  const char* const prefixes[] = {kLayer, gpt2 ? "transformer.h." : "model.layers.", "layers.",
                                  kMegatronLayer, kMegatronLayer};
  return absl::StrCat(prefixes[static_cast<size_t>(naming)], naming == Naming::kMegatron ? "" : number + ".");
}

Rearrangement RearrangementIn(const Row& row, Naming naming) {
  const Naming of = row.rearrangement == kPairs ? Naming::kTorchtitan : Naming::kTransformers;
  return naming == of ? row.rearrangement : kNone;
}

const Row* FindRow(Table table, const std::string& ours) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Row& row) { return row.ours == ours; });
  return found == table.end() ? nullptr : &*found;
}

// Null if no table has such a parameter.
const Row* RowOf(const ModelConfig& model, const std::string& ours) {
  const auto* llama = std::get_if<LlamaConfig>(&model);
  if (llama != nullptr && llama->experts.count > 0) {
    const bool mixtral = TransformersType(*llama) == "mixtral";
    if (const Row* row = FindRow(mixtral ? Table(kMixtral) : Table(kExperts), ours)) return row;
  }
  if (llama != nullptr && llama->latent) {
    if (const Row* row = FindRow(kLatent, ours)) return row;
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

// Makes `param` a part of Megatron-Core's tensor. `layer`: -1 if it is outside of layers.
void PlaceInMegatron(const ModelConfig& model, Part part, int64_t layer, int64_t layers, NamedParam* param) {
  const HeadGroups heads = HeadGroupsOf(model);
  const int64_t columns = param->elements() / param->shape[0];
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
  const int64_t numbers = param.elements();
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

int64_t NamedParam::elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> NamedParam::TheirShape() const {
  if (!runs.empty()) return of_shape;
  return rearrangement == Rearrangement::kTransposed ? std::vector<int64_t>(shape.rbegin(), shape.rend())
                                                     : shape;
}

namespace {

// A package has the names of the model that it was exported from.
std::vector<NamedParam> ParamsOf(const PackageConfig& package, Naming naming) {
  if (naming != Naming::kOurs && naming != Naming::kTransformers) return {};
  std::vector<NamedParam> params;
  for (const UnitFacts& unit : DescribePackage(package, DType::kFp32).units) {
    for (const ParamFacts& param : unit.params)
      params.push_back({FullName(unit, param), FullName(unit, param), param.shape});
  }
  return params;
}

}  // namespace

std::vector<NamedParam> ParamsOf(const ModelConfig& model, Naming naming) {
  if (const auto* package = std::get_if<PackageConfig>(&model)) return ParamsOf(*package, naming);
  if (TableOf(model).empty()) return {};
  const bool megatron = naming == Naming::kMegatron || naming == Naming::kMegatronLayers;
  const int64_t stacked_layers = naming == Naming::kMegatron ? LayersOf(model) : 0;
  std::vector<NamedParam> params;
  for (const UnitFacts& unit : DescribeModel(model, 1, 1, DType::kFp32).units) {
    const bool in_layer = absl::StartsWith(unit.name, kLayer);
    const std::string number = in_layer ? unit.name.substr(sizeof(kLayer) - 1) : "";
    for (const ParamFacts& param : unit.params) {
      const std::string ours = FullName(unit, param);
      const Row* row = RowOf(model, absl::StrCat(in_layer ? "#" : unit.name, ".", param.name));
      if (row == nullptr || NameIn(*row, naming) == nullptr) return {};
      const std::string theirs =
          absl::StrReplaceAll(NameIn(*row, naming), {{"#.", LayerPrefix(model, naming, number)}});
      NamedParam named = {ours, theirs, param.shape, RearrangementIn(*row, naming)};
      named.in_fp32 = row->in_fp32;
      if (param.shape.size() == 3) {
        AddExperts(named, naming, &params);
        continue;
      }
      params.push_back(named);
      if (!megatron) continue;
      int64_t layer = -1;
      FSDPD_CHECK(!in_layer || absl::SimpleAtoi(number, &layer));
      PlaceInMegatron(model, row->part, layer, stacked_layers, &params.back());
    }
  }
  return params;
}

std::string BodyPrefix(const ModelConfig& model, Naming naming) {
  if (naming != Naming::kTransformers || std::holds_alternative<PackageConfig>(model)) return "";
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

void Rearrange(Rearrangement rearrangement, bool to_ours, int64_t rows, int64_t columns, int64_t head_rows,
               int64_t bytes, const char* in, char* out) {
  FSDPD_CHECK(rearrangement != Rearrangement::kNone);
  if (rearrangement == Rearrangement::kTransposed)
    return Transpose(to_ours ? columns : rows, to_ours ? rows : columns, bytes, in, out);
  const int64_t row_bytes = columns * bytes;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t theirs = RowInPairs(row, head_rows);
    std::memcpy(out + (to_ours ? row : theirs) * row_bytes, in + (to_ours ? theirs : row) * row_bytes,
                row_bytes);
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

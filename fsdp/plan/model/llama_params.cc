#include "fsdp/plan/model/llama_params.h"

#include <utility>

#include "base/check.h"
#include "fsdp/plan/model/latent_facts.h"

namespace fsdpd {

void Add(Params* params, std::string name, std::vector<int64_t> shape, TensorPartition partition) {
  const bool decay = shape.size() > 1;
  params->push_back({std::move(name), std::move(shape), decay});
  params->back().partition = partition;
}

int64_t SliceOf(int64_t whole, int64_t ranks) {
  FSDPD_CHECK(whole % ranks == 0);
  return whole / ranks;
}

bool ShardsKeys(const LlamaConfig& model, int64_t tensor) { return model.kv_heads % tensor == 0; }

int64_t KeyHeads(const LlamaConfig& model, int64_t tensor) {
  if (ShardsKeys(model, tensor)) return model.kv_heads / tensor;
  FSDPD_CHECK(tensor % model.kv_heads == 0);
  return 1;
}

namespace {

constexpr size_t kUsualParams = 20;  // Parameters per layer, for reserve().

// Experts are stacked into one tensor per matrix. Only one dimension is partitioned: the expert dimension
// with expert parallelism, else a matrix dimension.
void AddExperts(const Shape& s, Params* params) {
  FSDPD_CHECK(s.tensor == 1 || s.expert == 1);
  const auto partition = [&s](int dim) {
    return s.expert > 1 ? TensorPartition{0, s.expert, Group::kExpert} : TensorPartition{dim, s.tensor};
  };
  const int64_t own = SliceOf(s.experts, s.expert);
  Add(params, "ffn.router", {s.experts, s.hidden});
  if (s.selection_bias) {
    Add(params, "ffn.router_bias", {s.experts});
    params->back().fixed = true;
    params->back().trainable = false;
  }
  Add(params, "ffn.experts.w1", {own, s.intermediate, s.hidden}, partition(1));
  Add(params, "ffn.experts.w3", {own, s.intermediate, s.hidden}, partition(1));
  Add(params, "ffn.experts.w2", {own, s.hidden, s.intermediate}, partition(2));
  if (s.shared == 0) return;
  Add(params, "ffn.shared.w1", {s.shared, s.hidden}, s.Rows());
  Add(params, "ffn.shared.w3", {s.shared, s.hidden}, s.Rows());
  Add(params, "ffn.shared.w2", {s.hidden, s.shared}, s.Columns());
}

// Query, key and value projections.
void AddHeads(const LlamaConfig& model, const Shape& s, Params* params) {
  const auto projection = [&](const std::string& letter, int64_t width, TensorPartition partition) {
    Add(params, "attention.w" + letter, {width, s.hidden}, partition);
    if (model.attention_bias) Add(params, "attention.b" + letter, {width}, partition);
  };
  const bool cuts = ShardsKeys(model, s.tensor);
  const int64_t keys = cuts ? s.key : model.kv_heads * model.head_size;
  projection("q", s.query, s.Rows());
  projection("k", keys, cuts ? s.Rows() : TensorPartition());
  projection("v", keys, cuts ? s.Rows() : TensorPartition());
  if (!model.qk_norm) return;
  Add(params, "attention.q_norm", {model.head_size});
  Add(params, "attention.k_norm", {model.head_size});
}

// Tensor parallelism partitions per-head projections by head; latent projections are replicated.
void AddLatent(const Shape& s, Params* params) {
  const LatentWidths widths = WidthsOf(s);
  const LatentConfig& latent = s.latent;
  if (latent.query_rank > 0) {
    Add(params, "attention.wq_a", {latent.query_rank, s.hidden});
  } else {
    Add(params, "attention.wq", {widths.queries, s.hidden}, s.Rows());
  }
  Add(params, "attention.wkv_a", {latent.rank + latent.rotary_head_size, s.hidden});
  if (latent.query_rank > 0) {
    Add(params, "attention.q_a_norm", {latent.query_rank});
    Add(params, "attention.wq_b", {widths.queries, latent.query_rank}, s.Rows());
  }
  Add(params, "attention.kv_a_norm", {latent.rank});
  Add(params, "attention.wkv_b", {widths.keys_and_values, latent.rank}, s.Rows());
}

}  // namespace

Params LlamaBlockParams(const LlamaConfig& model, const Shape& s) {
  Params params;
  params.reserve(kUsualParams);
  Add(&params, "attention_norm", {s.hidden});
  if (s.latent) {
    AddLatent(s, &params);
  } else {
    AddHeads(model, s, &params);
  }
  Add(&params, "attention.wo", {s.hidden, s.attended()}, s.Columns());
  Add(&params, "ffn_norm", {s.hidden});
  if (s.experts > 0) {
    AddExperts(s, &params);
    return params;
  }
  Add(&params, "ffn.w1", {s.intermediate, s.hidden}, s.Rows());
  Add(&params, "ffn.w3", {s.intermediate, s.hidden}, s.Rows());
  Add(&params, "ffn.w2", {s.hidden, s.intermediate}, s.Columns());
  return params;
}

}  // namespace fsdpd

#include "fsdp/plan/model/llama_exchanges.h"

#include "fsdp/plan/model/latent_facts.h"

namespace fsdpd {
namespace {

// Sequence parallelism: all-gather between a norm and the matrices that read it, reduce-scatter between
// matrices and the residual stream, and the reverse in backward.
void AddStreamExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  if (s.tensor == 1) return;
  const int64_t all = s.tokens * s.hidden;
  for (const int64_t selective : {int64_t{0}, all}) {  // Attention, then feed-forward.
    exchanges->push_back({Group::kTensor, all, all, Exchange::kAllGather, compute, selective});
    exchanges->push_back({Group::kTensor, all, all, Exchange::kReduceScatter, compute});
    // Gathers the normed input again.
    exchanges->push_back({Group::kTensor, 0, all, Exchange::kAllGather, compute});
  }
}

// All-gather dispatch. Forward gathers tokens, expert indices and weights, and sums the partial outputs.
// Backward gathers the output's gradient and the normed input, and sums the gradients of tokens and weights.
void AddTokenExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  const int64_t all = s.expert * s.tokens * s.hidden, choices = s.expert * s.rows();
  const auto add = [&](int64_t forward, int64_t backward, Exchange what, DType type, int64_t selective = 0) {
    exchanges->push_back({Group::kExpert, forward, backward, what, type, selective});
  };
  add(all, all, Exchange::kAllGather, compute, all);
  add(2 * choices, 0, Exchange::kAllGather, DType::kFp32, 2 * choices);
  add(all, all, Exchange::kReduceScatter, compute);
  add(0, choices, Exchange::kReduceScatter, DType::kFp32);
  add(0, all, Exchange::kAllGather, compute);
}

// All-to-all dispatch. Forward sends rows with expert index and weight, and receives the results. Backward
// sends the gradient and the normed input again, and receives the gradients of both. Sizes are buffer
// capacities.
void AddRowExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  const auto send = [&](int64_t forward, int64_t backward, DType type, int64_t selective = 0) {
    exchanges->push_back({Group::kExpert, forward, backward, Exchange::kAllToAll, type, selective});
  };
  const int64_t rows = s.dispatched_rows(), all = rows * s.hidden;
  send(2 * rows, rows, DType::kFp32, 2 * rows);
  send(all, all, compute, all);
  send(all, all, compute);
  send(0, all, compute);
}

}  // namespace

std::vector<UnitExchange> LlamaBlockExchanges(const Shape& s, DType compute) {
  std::vector<UnitExchange> exchanges;
  if (s.context > 1) {
    const int64_t all = s.latent ? SampleLatents(s) : s.AllKeys();
    exchanges = {{Group::kContext, all, all, Exchange::kAllGather, compute},
                 {Group::kContext, 0, all, Exchange::kReduceScatter, compute}};
    if (s.experts > 0) {
      const int64_t counts = s.tokens * s.context / s.sequence * s.experts;
      exchanges.push_back({Group::kContext, counts, 0, Exchange::kAllReduce, DType::kFp32, counts});
    }
  }
  AddStreamExchanges(s, compute, &exchanges);
  if (s.gathers_tokens()) {
    AddTokenExchanges(s, compute, &exchanges);
  } else if (s.expert > 1) {
    AddRowExchanges(s, compute, &exchanges);
  }
  return exchanges;
}

std::vector<UnitExchange> LlamaEmbeddingExchanges(const Shape& s, DType compute) {
  if (s.tensor == 1) return {};
  const int64_t all = s.tokens * s.hidden;
  return {{Group::kTensor, all, 0, Exchange::kReduceScatter, compute},
          {Group::kTensor, 0, all, Exchange::kAllGather, compute}};
}

std::vector<UnitExchange> LlamaHeadExchanges(const Shape& s, DType compute) {
  if (s.tensor == 1) return {};
  const int64_t all = s.tokens * s.hidden;
  return {{Group::kTensor, all, 0, Exchange::kAllGather, compute},
          {Group::kTensor, s.tokens * s.tensor, 0, Exchange::kAllGather, DType::kFp32},
          {Group::kTensor, 0, all, Exchange::kReduceScatter, compute}};
}

}  // namespace fsdpd

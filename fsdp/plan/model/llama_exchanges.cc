#include "fsdp/plan/model/llama_exchanges.h"

#include "fsdp/plan/model/latent_facts.h"

namespace fsdpd {
namespace {

// Between a norm and the matrices that read it, and between matrices and the residual stream, each way.
void AddStreamExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  if (s.tensor == 1) return;
  const int64_t all = s.tokens * s.hidden;
  for (const int64_t selective : {int64_t{0}, all}) {  // Attention's half, and the FFN's.
    exchanges->push_back({Group::kTensor, all, all, Exchange::kGather, compute, selective});
    exchanges->push_back({Group::kTensor, all, all, Exchange::kSumPart, compute});
    exchanges->push_back({Group::kTensor, 0, all, Exchange::kGather, compute});  // The normed input again.
  }
}

// Forward gathers tokens, and of each choice its expert and how much it counts, and sums what comes of them;
// backward gathers the gradient of that and the normed input again, and sums the gradients of both.
void AddTokenExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  const int64_t all = s.expert * s.tokens * s.hidden, choices = s.expert * s.rows();
  const auto add = [&](int64_t forward, int64_t backward, Exchange what, DType type, int64_t selective = 0) {
    exchanges->push_back({Group::kExpert, forward, backward, what, type, selective});
  };
  add(all, all, Exchange::kGather, compute, all);
  add(2 * choices, 0, Exchange::kGather, DType::kFp32, 2 * choices);
  add(all, all, Exchange::kSumPart, compute);
  add(0, choices, Exchange::kSumPart, DType::kFp32);
  add(0, all, Exchange::kGather, compute);
}

// Forward sends rows, of each its expert and how much it counts, and gets what came of them; backward sends
// the gradient of that and the normed input again, and gets the gradients of both. Each part has its room.
void AddRowExchanges(const Shape& s, DType compute, std::vector<UnitExchange>* exchanges) {
  const auto send = [&](int64_t forward, int64_t backward, DType type, int64_t selective = 0) {
    exchanges->push_back({Group::kExpert, forward, backward, Exchange::kSend, type, selective});
  };
  const int64_t rows = s.travelling_rows(), all = rows * s.hidden;
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
    exchanges = {{Group::kContext, all, all, Exchange::kGather, compute},
                 {Group::kContext, 0, all, Exchange::kSumPart, compute}};
    if (s.experts > 0) {
      const int64_t counts = s.tokens * s.context / s.sequence * s.experts;
      exchanges.push_back({Group::kContext, counts, 0, Exchange::kSum, DType::kFp32, counts});
    }
  }
  AddStreamExchanges(s, compute, &exchanges);
  if (s.tokens_travel()) {
    AddTokenExchanges(s, compute, &exchanges);
  } else if (s.expert > 1) {
    AddRowExchanges(s, compute, &exchanges);
  }
  return exchanges;
}

std::vector<UnitExchange> LlamaEmbeddingExchanges(const Shape& s, DType compute) {
  if (s.tensor == 1) return {};
  const int64_t all = s.tokens * s.hidden;
  return {{Group::kTensor, all, 0, Exchange::kSumPart, compute},
          {Group::kTensor, 0, all, Exchange::kGather, compute}};
}

std::vector<UnitExchange> LlamaHeadExchanges(const Shape& s, DType compute) {
  if (s.tensor == 1) return {};
  const int64_t all = s.tokens * s.hidden;
  return {{Group::kTensor, all, 0, Exchange::kGather, compute},
          {Group::kTensor, s.tokens * s.tensor, 0, Exchange::kGather, DType::kFp32},
          {Group::kTensor, 0, all, Exchange::kSumPart, compute}};
}

}  // namespace fsdpd

#include "fsdp/model/native/native_passage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>

#include "base/check.h"

namespace fsdpd {
namespace {

// Counts travel as fp32, which has every number up to here.
constexpr int64_t kMostRows = int64_t{1} << 24;

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// For each of `ranks`, and of each of its experts, how many rows come from it.
std::vector<int64_t> ExchangeCounts(const RowCounts& of_expert, int64_t ranks, UnitContext* context) {
  const at::Tensor mine = at::tensor(of_expert).to(at::kFloat);
  const at::Tensor theirs = at::zeros_like(mine);  // None, where the group has failed.
  const std::vector<int64_t> own(ranks, static_cast<int64_t>(of_expert.size()) / ranks);
  context->AllToAll(Group::kExpert, mine, own, theirs, own);
  const float* counts = theirs.const_data_ptr<float>();
  return {counts, counts + theirs.numel()};
}

}  // namespace

Passage MakePassage(const RowCounts& of_expert, UnitContext* context) {
  const int64_t ranks = context->SizeOf(Group::kExpert);
  if (ranks == 1) return {of_expert, {}, {}, {}};
  FSDPD_CHECK(static_cast<int64_t>(of_expert.size()) % ranks == 0 && Sum(of_expert) < kMostRows);
  const int64_t experts = static_cast<int64_t>(of_expert.size()) / ranks;  // Of each rank.
  const std::vector<int64_t> counts = ExchangeCounts(of_expert, ranks, context);
  Passage passage;
  passage.of_expert.assign(experts, 0);
  std::vector<int64_t> begins;  // Of each rank's rows for each expert, in what is received.
  int64_t begin = 0;
  for (int64_t r = 0; r < ranks; ++r) {
    passage.sent.push_back(Sum({of_expert.begin() + r * experts, of_expert.begin() + (r + 1) * experts}));
    passage.received.push_back(Sum({counts.begin() + r * experts, counts.begin() + (r + 1) * experts}));
    for (int64_t e = 0; e < experts; ++e) {
      begins.push_back(begin);
      begin += counts[r * experts + e];
      passage.of_expert[e] += counts[r * experts + e];
    }
  }
  std::vector<int64_t> order;
  for (int64_t e = 0; e < experts; ++e) {
    for (int64_t r = 0; r < ranks; ++r) {
      const int64_t at = r * experts + e;
      for (int64_t i = 0; i < counts[at]; ++i) order.push_back(begins[at] + i);
    }
  }
  passage.order = at::tensor(order, at::TensorOptions(at::kLong));
  return passage;
}

at::Tensor ToExperts(const at::Tensor& rows, const Passage& passage, UnitContext* context) {
  if (passage.sent.empty()) return rows;
  const at::Tensor here = at::empty({Sum(passage.received), rows.size(1)}, rows.options());
  context->AllToAll(Group::kExpert, rows, passage.sent, here, passage.received);
  return here.index_select(0, passage.order);
}

at::Tensor ToTokens(const at::Tensor& rows, const Passage& passage, UnitContext* context) {
  if (passage.sent.empty()) return rows;
  const at::Tensor here = at::empty_like(rows).index_copy_(0, passage.order, rows);
  const at::Tensor back = at::empty({Sum(passage.sent), rows.size(1)}, rows.options());
  context->AllToAll(Group::kExpert, here, passage.received, back, passage.sent);
  return back;
}

}  // namespace fsdpd

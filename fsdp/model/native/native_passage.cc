#include "fsdp/model/native/native_passage.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "fsdp/plan/model/model_facts.h"

namespace fsdpd {
namespace {

// Counts travel as fp32, which has every number up to here.
constexpr int64_t kMostRows = int64_t{1} << 24;

int64_t Sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// How many rows this rank has for each expert of each rank, and how many each of those has for this one's.
struct Counts {
  std::vector<int64_t> mine, theirs;  // [ranks x experts of one]
};

Counts ExchangeCounts(const at::Tensor& mine, int64_t ranks, UnitContext* context) {
  const at::Tensor theirs = at::zeros_like(mine);  // None, where the group has failed.
  const std::vector<int64_t> own(ranks, mine.numel() / ranks);
  context->AllToAll(Group::kExpert, mine, own, theirs, own);
  const at::Tensor both = context->OnHost(Group::kExpert, at::stack({mine, theirs}));
  const float *sent = both.const_data_ptr<float>(), *received = sent + mine.numel();
  return {{sent, received}, {received, received + mine.numel()}};
}

// Host memory that is copied to the device without a wait.
at::Tensor Staged(int64_t count, bool cuda) {
  return at::empty({count}, at::TensorOptions(at::kInt).pinned_memory(cuda));
}

// Fills in ends, order and of_received. counts: [ranks x experts of this one].
void PlaceReceived(const std::vector<int64_t>& counts, int64_t experts, at::Device device, Passage* passage) {
  const auto ranks = static_cast<int64_t>(counts.size()) / experts;
  const int64_t step = device.is_cuda() ? kExpertRowStep : 1;
  const at::Tensor ends = Staged(experts, device.is_cuda());
  int32_t* end = ends.mutable_data_ptr<int32_t>();
  for (int64_t e = 0; e < experts; ++e) {
    int64_t rows = 0;
    for (int64_t r = 0; r < ranks; ++r) rows += counts[r * experts + e];
    if (step > 1) rows = std::max(step, (rows + step - 1) / step * step);
    end[e] = static_cast<int32_t>((e > 0 ? end[e - 1] : 0) + rows);
  }
  const at::Tensor order = Staged(end[experts - 1], device.is_cuda()),
                   of_received = Staged(Sum(counts), device.is_cuda());
  int32_t *from = order.mutable_data_ptr<int32_t>(), *to = of_received.mutable_data_ptr<int32_t>();
  std::fill_n(from, order.numel(), -1);
  std::vector<int32_t> next(experts);
  for (int64_t e = 0; e < experts; ++e) next[e] = e > 0 ? end[e - 1] : 0;
  int32_t row = 0;
  for (size_t at = 0; at < counts.size(); ++at) {
    int32_t& place = next[static_cast<int64_t>(at) % experts];
    for (int64_t i = 0; i < counts[at]; ++i) {
      to[row] = place;
      from[place++] = row++;
    }
  }
  passage->ends = ends.to(device, /*non_blocking=*/true);
  passage->order = order.to(device, /*non_blocking=*/true);
  passage->of_received = of_received.to(device, /*non_blocking=*/true);
}

}  // namespace

Passage MakePassage(const Routing& routing, UnitContext* context) {
  const int64_t ranks = context->SizeOf(Group::kExpert), all = routing.counts.size(0);
  if (ranks == 1) return {};
  FSDPD_CHECK(all % ranks == 0 && routing.experts.numel() < kMostRows);
  const int64_t experts = all / ranks;  // Of each rank.
  const Counts counts = ExchangeCounts(routing.counts, ranks, context);
  Passage passage;
  for (int64_t begin = 0; begin < all; begin += experts) {
    passage.sent.push_back(Sum({counts.mine.begin() + begin, counts.mine.begin() + begin + experts}));
    passage.received.push_back(Sum({counts.theirs.begin() + begin, counts.theirs.begin() + begin + experts}));
  }
  // Where the group has failed, values are undefined and shapes are not.
  if (Sum(passage.sent) != routing.experts.numel()) {
    passage.sent.assign(ranks, 0);
    passage.sent[0] = routing.experts.numel();
  }
  PlaceReceived(counts.theirs, experts, routing.counts.device(), &passage);
  return passage;
}

const at::Tensor& EndsHere(const Routing& routing, const Passage& passage) {
  return passage.ends.defined() ? passage.ends : routing.rows.ends;
}

at::Tensor ToExperts(const at::Tensor& rows, const Passage& passage, UnitContext* context) {
  if (passage.sent.empty()) return rows;
  const at::Tensor here = at::empty({Sum(passage.received), rows.size(1)}, rows.options());
  context->AllToAll(Group::kExpert, rows, passage.sent, here, passage.received);
  return GatherRows(here, passage.order);
}

at::Tensor ToTokens(const at::Tensor& rows, const Passage& passage, UnitContext* context) {
  if (passage.sent.empty()) return rows;
  const at::Tensor here = GatherRows(rows, passage.of_received);
  const at::Tensor back = at::empty({Sum(passage.sent), rows.size(1)}, rows.options());
  context->AllToAll(Group::kExpert, here, passage.received, back, passage.sent);
  return back;
}

}  // namespace fsdpd

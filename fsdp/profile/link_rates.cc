#include "fsdp/profile/link_rates.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include <algorithm>

#include "base/check.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {
namespace {

// A transfer counts as at least this fraction of its measured time, so that noise in the latency cannot make
// a link infinitely fast.
constexpr double kLeastShare = 0.1;

double D(int64_t value) { return static_cast<double>(value); }

at::TensorOptions Options(const RankBench& rank, DType dtype) {
  return at::TensorOptions().dtype(ScalarTypeOf(dtype)).device(rank.device);
}

absl::Status Expect(bool right, const char* what, DType wire) {
  if (right) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, " in ", NameOf(wire), ": wrong result"));
}

Communicator* Gathers(const RankBench& rank) { return rank.mesh.Find(Group::kShard, Role::kGather); }

absl::StatusOr<Work> MakeReduce(RankBench* rank, int64_t elements, DType wire) {
  Communicator* group = rank->mesh.Find(Group::kShard, Role::kReduce);
  at::Tensor all, scratch, sum;
  FSDPD_RETURN_IF_ERROR(RunOn(rank->communication.get(), [&] {
    const at::NoGradGuard no_grad;
    all = at::empty({group->size(), elements}, Options(*rank, wire));
    scratch = at::empty(wire == DType::kFp32 ? at::IntArrayRef{0} : all.sizes(), all.options());
    sum = at::empty({elements}, Options(*rank, DType::kFp32));
    all.fill_(group->rank() + 1);
    FSDPD_RETURN_IF_ERROR(group->ReduceScatter(all.mutable_data_ptr(), scratch.mutable_data_ptr(),
                                               sum.mutable_data_ptr<float>(), elements, wire));
    const int ranks = group->size();
    FSDPD_RETURN_IF_ERROR(Expect(sum.eq(ranks * (ranks + 1) / 2).all().item<bool>(), "reduce-scatter", wire));
    all.zero_();  // Repeated sums in place stay small.
    return absl::OkStatus();
  }));
  return Work([group, all, scratch, sum, elements, wire] {
    return group->ReduceScatter(all.mutable_data_ptr(), scratch.mutable_data_ptr(),
                                sum.mutable_data_ptr<float>(), elements, wire);
  });
}

absl::StatusOr<double> SecondsOf(RankBench* rank, const absl::StatusOr<Work>& collective) {
  FSDPD_RETURN_IF_ERROR(collective.status());
  return MedianSeconds(rank, rank->communication.get(), *collective);
}

double Rate(double bytes, double seconds, double beside) {
  return bytes / std::max(seconds - beside, kLeastShare * seconds);
}

}  // namespace

absl::StatusOr<Work> MakeGather(RankBench* rank, Communicator* group, int64_t elements, DType wire) {
  at::Tensor all;
  const auto gather = [&] { return group->AllGather(all.mutable_data_ptr(), elements, wire); };
  FSDPD_RETURN_IF_ERROR(RunOn(rank->communication.get(), [&] {
    const at::NoGradGuard no_grad;
    all = at::empty({group->size(), elements}, Options(*rank, wire));
    all.fill_(-1);
    all.select(0, group->rank()).fill_(group->rank() + 1);
    FSDPD_RETURN_IF_ERROR(gather());
    bool right = true;
    for (int r = 0; r < group->size(); ++r) right = right && all.select(0, r).eq(r + 1).all().item<bool>();
    return Expect(right, "all-gather", wire);
  }));
  return Work(
      [group, all, elements, wire] { return group->AllGather(all.mutable_data_ptr(), elements, wire); });
}

absl::StatusOr<double> MeasureLatency(RankBench* rank, const LinkSizes& sizes, DType wire) {
  FSDPD_ASSIGN_OR_RETURN(const double gather,
                         SecondsOf(rank, MakeGather(rank, Gathers(*rank), sizes.small_elements, wire)));
  FSDPD_ASSIGN_OR_RETURN(const double reduce, SecondsOf(rank, MakeReduce(rank, sizes.small_elements, wire)));
  return (gather + reduce) / 2;
}

absl::StatusOr<LinkRates> MeasureLinks(RankBench* rank, const LinkSizes& sizes, DType wire,
                                       double latency_seconds, double memory_bytes_per_second) {
  const double part = D(sizes.large_elements) * D(BytesOf(wire)),
               ranks = rank->mesh.Find(Group::kShard, Role::kGather)->size();
  FSDPD_ASSIGN_OR_RETURN(const double gather,
                         SecondsOf(rank, MakeGather(rank, Gathers(*rank), sizes.large_elements, wire)));
  FSDPD_ASSIGN_OR_RETURN(const double reduce, SecondsOf(rank, MakeReduce(rank, sizes.large_elements, wire)));
  const double summed =
      wire == DType::kFp32 ? 0 : ranks * part + D(sizes.large_elements) * D(BytesOf(DType::kFp32));
  const double moved = (ranks - 1) * part;
  return LinkRates{Rate(moved, gather, latency_seconds),
                   Rate(moved, reduce, latency_seconds + summed / memory_bytes_per_second)};
}

absl::StatusOr<Slowdowns> MeasureSlowdowns(RankBench* rank, const ComputeSizes& compute,
                                           const LinkSizes& links, DType dtype) {
  const auto timed = [rank](Lane* lane, const absl::StatusOr<Work>& work) -> absl::StatusOr<TimedWork> {
    FSDPD_RETURN_IF_ERROR(work.status());
    FSDPD_ASSIGN_OR_RETURN(const double seconds, MedianSeconds(rank, lane, *work));
    return TimedWork{lane, *work, seconds};
  };
  FSDPD_ASSIGN_OR_RETURN(const TimedWork product,
                         timed(rank->compute.get(), MakeProduct(rank, compute, dtype)));
  FSDPD_ASSIGN_OR_RETURN(
      const TimedWork gather,
      timed(rank->communication.get(), MakeGather(rank, Gathers(*rank), links.large_elements, dtype)));
  FSDPD_ASSIGN_OR_RETURN(const double product_beside, SecondsWithConcurrent(rank, product, gather));
  FSDPD_ASSIGN_OR_RETURN(const double gather_beside, SecondsWithConcurrent(rank, gather, product));
  return Slowdowns{std::max(1.0, product_beside / product.isolated_seconds),
                   std::max(1.0, gather_beside / gather.isolated_seconds)};
}

}  // namespace fsdpd

#include "fsdp/engine/operations/snapshot.h"

#include <ATen/ops/from_blob.h>

#include <cstring>

#include "base/check.h"
#include "fsdp/kernels/split_bits.h"
#include "fsdp/optimizer/fp8_moments.h"
#include "fsdp/plan/memory/host_memory.h"
#include "fsdp/torch/scalar_type.h"

namespace fsdpd {

std::unique_ptr<HostArenaFuture> Snapshot::Allocate(const Spec& spec, const Layout& layout,
                                                    const MeshPosition& position) {
  return std::make_unique<HostArenaFuture>(SnapshotBytes(spec, layout, position), spec.device, "snapshots");
}

absl::StatusOr<std::unique_ptr<Snapshot>> Snapshot::Make(const Spec& spec, const Layout& layout,
                                                         const MeshPosition& position,
                                                         std::unique_ptr<HostArenaFuture> memory) {
  if (memory == nullptr) memory = Allocate(spec, layout, position);
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> arena, memory->Get());
  std::unique_ptr<Snapshot> snapshot(new Snapshot(std::move(arena)));
  snapshot->buckets_.resize(layout.buckets.size());
  for (const SnapshotPlace& place : SnapshotPlaces(spec, layout, position)) {
    const Bucket& bucket = layout.buckets[place.bucket];
    BucketCopy& copy = snapshot->buckets_[place.bucket];
    const auto view = [&](at::ScalarType type) {
      return at::from_blob(snapshot->arena_->data() + place.offset, {bucket.main_elements},
                           at::TensorOptions().dtype(type));
    };
    switch (place.what) {
      case SnapshotPart::kMain:
        copy.main = view(ScalarTypeOf(bucket.types.main));
        break;
      case SnapshotPart::kHigh:
        copy.split.high = view(at::kBFloat16);
        break;
      case SnapshotPart::kLow:
        copy.split.low = view(at::kShort);
        break;
      case SnapshotPart::kMoment:
        copy.moments.push_back(view(MomentTypeOf(bucket.types.moment)));
        break;
    }
  }
  return snapshot;
}

void Snapshot::Take(int bucket, const BucketShard& shard) {
  BucketCopy& copy = buckets_[bucket];
  const auto take = [](const at::Tensor& to, const at::Tensor& from) {
    if (to.defined()) to.copy_(from, /*non_blocking=*/true);
  };
  take(copy.main, shard.main);
  take(copy.split.high, shard.split.high);
  take(copy.split.low, shard.split.low);
  for (size_t m = 0; m < copy.moments.size(); ++m) take(copy.moments[m], shard.moments[m]);
}

const void* Snapshot::Bytes(const StoredRun& run, int64_t bytes, std::vector<char>* scratch) const {
  const BucketCopy& copy = buckets_[run.bucket];
  const bool is_moment = run.what == StoredRun::What::kMoment;
  if (is_moment && copy.moments[run.moment].scalar_type() == at::kByte) {
    scratch->resize(bytes);
    WidenMomentsTo(copy.moments[run.moment].narrow(0, run.begin, bytes / 2), run.moment, scratch->data());
    return scratch->data();
  }
  if (is_moment || !copy.split.defined()) {
    const at::Tensor& stored = is_moment ? copy.moments[run.moment] : copy.main;
    return static_cast<const char*>(stored.const_data_ptr()) + run.begin * stored.element_size();
  }
  scratch->resize(bytes);
  const auto* high = static_cast<const uint16_t*>(copy.split.high.const_data_ptr()) + run.begin;
  const auto* low = static_cast<const uint16_t*>(copy.split.low.const_data_ptr()) + run.begin;
  for (int64_t i = 0; i < bytes / static_cast<int64_t>(sizeof(uint32_t)); ++i) {
    const uint32_t bits = kernels::JoinBits({high[i], low[i]});
    std::memcpy(scratch->data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return scratch->data();
}

}  // namespace fsdpd

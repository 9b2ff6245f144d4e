#include "fsdp/plan/memory/host_memory.h"

namespace fsdpd {

constexpr int64_t kSnapshotAlignBytes = 256;

std::vector<SnapshotPlace> SnapshotPlaces(const Spec& spec, const Layout& layout,
                                          const MeshPosition& position) {
  std::vector<SnapshotPlace> places;
  if (!spec.checkpoint.saves()) return places;
  int64_t end = 0;
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    const Bucket& bucket = layout.buckets[b];
    if (bucket.of_base || !HasFirstCopy(bucket, position)) continue;
    const auto add = [&](SnapshotPart what, int moment, int64_t element_bytes) {
      const int64_t bytes = bucket.main_elements * element_bytes;
      places.push_back({static_cast<int>(b), what, moment, end, bytes});
      end += RoundUp(bytes, kSnapshotAlignBytes);
    };
    if (bucket.types.split_fp32) {
      add(SnapshotPart::kHigh, 0, BytesOf(bucket.types.main) / 2);
      add(SnapshotPart::kLow, 0, BytesOf(bucket.types.main) / 2);
    } else {
      add(SnapshotPart::kMain, 0, BytesOf(bucket.types.main));
    }
    const int moments = bucket.trainable ? spec.optimizer.moments() : 0;
    for (int m = 0; m < moments; ++m) add(SnapshotPart::kMoment, m, BytesOf(bucket.types.moment));
  }
  return places;
}

int64_t SnapshotBytes(const Spec& spec, const Layout& layout, const MeshPosition& position) {
  const std::vector<SnapshotPlace> places = SnapshotPlaces(spec, layout, position);
  return places.empty() ? 0 : places.back().offset + RoundUp(places.back().bytes, kSnapshotAlignBytes);
}

}  // namespace fsdpd

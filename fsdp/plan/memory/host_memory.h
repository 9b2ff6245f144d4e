// Layout of a rank's pinned host memory for checkpoint snapshots. Exact: the engine places its copies by this
// table, so planned and actual bytes are equal.
//
// Frozen weights of a model with LoRA adapters are not copied. Each other bucket is copied once, by its
// lowest-numbered owner (HasFirstCopy). Per bucket, in layout order: the main parameters (or their high and
// then low 16 bits if BucketTypes::split_fp32), then each moment if the bucket is trainable. Padding is
// included, so that each part is one copy.
//
// Pure. Empty if the job writes no checkpoints.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

enum class SnapshotPart { kMain, kHigh, kLow, kMoment };

struct SnapshotPlace {
  int bucket = 0;
  SnapshotPart what = SnapshotPart::kMain;
  int moment = 0;      // Index of the moment, for kMoment.
  int64_t offset = 0;  // A multiple of 256.
  int64_t bytes = 0;
};

// Ordered by bucket, then as above; offsets ascend.
std::vector<SnapshotPlace> SnapshotPlaces(const Spec& spec, const Layout& layout,
                                          const MeshPosition& position);

// Total bytes; a multiple of 256. Rank 0 is the first owner of everything it holds, so no rank needs more.
int64_t SnapshotBytes(const Spec& spec, const Layout& layout, const MeshPosition& position);

}  // namespace fsdpd

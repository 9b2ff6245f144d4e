// Pinned host memory of a rank where its snapshots for checkpoints lie, one after the other. Exact, from the
// layout; whoever copies (fsdp/engine) lays its memory out by this, so what is planned is what is taken.
//
// A bucket is copied out by the rank that has its first copy (HasFirstCopy), once. Of each such bucket, in
// the layout's order: its main parameters, or their high and then their low halves where they lie so
// (BucketTypes::split_fp32), then each moment where it is trained. All padding included: a part is one copy.
//
// Pure. Nothing where the job writes no checkpoints.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/layout/layout.h"

namespace fsdpd {

enum class SnapshotPart { kMain, kHigh, kLow, kMoment };

struct SnapshotPlace {
  int bucket = 0;
  SnapshotPart what = SnapshotPart::kMain;
  int moment = 0;      // Which one, from 0; of kMoment.
  int64_t offset = 0;  // A multiple of 256.
  int64_t bytes = 0;
};

// By bucket, then as above; offsets rise.
std::vector<SnapshotPlace> SnapshotPlaces(const Spec& spec, const Layout& layout,
                                          const MeshPosition& position);

// What they take together; a multiple of 256. Rank 0 has the first copy of all that it has, so no rank takes
// more.
int64_t SnapshotBytes(const Spec& spec, const Layout& layout, const MeshPosition& position);

}  // namespace fsdpd

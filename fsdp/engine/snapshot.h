// A copy in host memory of what a rank must write of the model: main parameters and moments of the buckets
// whose first copy it has. Instructions take it, bucket by bucket and beside compute (a Snapshot each); who
// writes it reads it when the step is done.
//
// Call order: Take of every bucket, then reading, until the next Take. Thread safety: buckets are
// independent; const while nothing is taken. Errors of Make: host_arena.h's.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/checkpoint/job_file.h"
#include "fsdp/memory/host_arena.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class Snapshot {
 public:
  // Starts to populate the memory of a rank's snapshots.
  static std::unique_ptr<HostArenaFuture> Allocate(const Spec& spec, const Layout& layout,
                                                   const MeshPosition& position);

  // `memory`: from Allocate() with the same arguments; null: allocated now.
  static absl::StatusOr<std::unique_ptr<Snapshot>> Make(const Spec& spec, const Layout& layout,
                                                        const MeshPosition& position,
                                                        std::unique_ptr<HostArenaFuture> memory = nullptr);

  // On the copy lane: the copies are done when its next mark is.
  void Take(int bucket, const BucketShard& shard);

  // What is stored from `begin` elements on: `bytes` bytes of it. Where they have to be made, in `scratch`.
  const void* Numbers(const StoredRun& run, int64_t bytes, std::vector<char>* scratch) const;

  int64_t bytes() const { return arena_->bytes(); }

 private:
  struct BucketCopy {
    at::Tensor main;  // fp32; undefined where there are halves, and where another rank has the first copy.
    SplitFp32 halves;
    std::vector<at::Tensor> moments;
  };

  explicit Snapshot(std::unique_ptr<HostArena> arena) : arena_(std::move(arena)) {}

  std::unique_ptr<HostArena> arena_;
  std::vector<BucketCopy> buckets_;
};

}  // namespace fsdpd

// Snapshot: copy in host memory of what a rank writes to a checkpoint, the main parameters and moments of the
// buckets of which it owns the first replica. Snapshot instructions fill it bucket by bucket, overlapped with
// compute; the saver reads it once the step is done.
//
// Call order: Take for every bucket, then reading, until the next Take. Thread safety: buckets are
// independent; const methods while no Take runs. Errors of Make: those of host_arena.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "fsdp/checkpoint/job/job_file.h"
#include "fsdp/memory/host_arena.h"
#include "fsdp/optimizer/sharded_params.h"
#include "fsdp/plan/layout/layout.h"
#include "fsdp/plan/spec/spec.h"

namespace fsdpd {

class Snapshot {
 public:
  // Starts to allocate and populate the memory of a rank's snapshot.
  static std::unique_ptr<HostArenaFuture> Allocate(const Spec& spec, const Layout& layout,
                                                   const MeshPosition& position);

  // `memory`: from Allocate() with the same arguments; null: allocates now.
  static absl::StatusOr<std::unique_ptr<Snapshot>> Make(const Spec& spec, const Layout& layout,
                                                        const MeshPosition& position,
                                                        std::unique_ptr<HostArenaFuture> memory = nullptr);

  // On the copy lane: the copies are complete when the lane's next event is.
  void Take(int bucket, const BucketShard& shard);

  // `bytes` bytes of the stored values of `run`, from its first element. Uses `scratch` if they must be
  // converted.
  const void* Bytes(const StoredRun& run, int64_t bytes, std::vector<char>* scratch) const;

  int64_t bytes() const { return arena_->bytes(); }

 private:
  struct BucketCopy {
    at::Tensor main;  // fp32; undefined with split fp32, and if another rank owns the first replica.
    SplitFp32 split;
    std::vector<at::Tensor> moments;
  };

  explicit Snapshot(std::unique_ptr<HostArena> arena) : arena_(std::move(arena)) {}

  std::unique_ptr<HostArena> arena_;
  std::vector<BucketCopy> buckets_;
};

}  // namespace fsdpd

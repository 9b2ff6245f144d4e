// Host copies of activations that are saved between forward and backward (OffloadsActivations): moved out of
// a unit after forward, to host memory, and back before backward.
//
// Call order per micro-batch and unit, given by the program: Take, Offload, Drop, Fetch, PutBack. Device
// memory is allocated on the compute lane's stream, like the memory of the units: compute may reuse
// immediately what Drop frees, and Fetch may get memory that earlier work on compute uses. So the program
// makes Fetch wait for all work submitted to compute before it.
//
// Tensors that share a storage are copied as one range. Attention statistics for which the plan reserves no
// host memory (many documents, partial sequences) stay with the unit.
//
// Thread safety: each function runs on the lane of its instruction; the program orders them.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <optional>
#include <vector>

#include "fsdp/memory/host_arena.h"
#include "fsdp/model/unit/unit.h"
#include "fsdp/plan/plan.h"

namespace fsdpd {

class OffloadedActivations {
 public:
  // Allocates the host memory. The plan must outlive the object.
  static absl::StatusOr<std::unique_ptr<OffloadedActivations>> Make(const Plan& plan, at::Device device);

  bool Has(int unit) const { return host_copies_[unit].bytes.defined(); }

  // On the compute lane, after the unit's forward.
  void Take(int unit, int slot, Unit* from);
  void Offload(int unit);
  void Drop(int unit);
  void Fetch(int unit);
  // On the compute lane, before the unit's backward.
  void PutBack(int unit, int slot, Unit* to);

  // Drops device tensors: the recording of a step failed half-way.
  void Forget();

 private:
  // A contiguous range of one storage.
  struct StorageRange {
    const void* storage = nullptr;
    int64_t begin = 0;     // Offset of the first element in the storage.
    int64_t elements = 0;  // Number of elements.
    at::Tensor on_device;  // Flat; undefined while offloaded.
    at::Tensor on_host;    // Flat.
  };
  // One tensor that a unit saved.
  struct SavedActivations {
    size_t range = 0;
    int64_t begin = 0;  // Offset within the range.
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  struct HostCopy {
    at::Tensor bytes;  // Flat, pinned for CUDA; undefined if the unit does not offload.
    std::vector<StorageRange> ranges;
    std::vector<std::optional<SavedActivations>> saved;  // In the unit's order; nullopt: stays with the unit.
  };

  void AddRanges(int slot, Unit* from, HostCopy* host_copy) const;
  void AssignHostMemory(HostCopy* host_copy) const;

  OffloadedActivations(std::unique_ptr<HostArena> host, at::Device device)
      : host_(std::move(host)), device_(device) {}

  std::unique_ptr<HostArena> host_;
  const at::Device device_;
  std::vector<HostCopy> host_copies_;  // By unit.
  std::optional<c10::Stream> stream_;  // Stream of the compute lane; nullopt on CPU.
};

}  // namespace fsdpd

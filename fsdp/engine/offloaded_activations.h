// What layers keep in host memory between their forward and their backward (OffloadsActivations): out of a
// unit's hands, over, and back into them.
//
// Call order, of a micro-batch and a unit, as a program has it: Take, Offload, Drop, Fetch, PutBack. Memory
// on the device comes from where the units' comes from, on the compute lane's stream: what Drop frees,
// compute may have at once, and what Fetch takes compute has used before. So Fetch waits for all that compute
// was given before it.
//
// Tensors that share a storage go as one. Statistics of attention that the plan counts no room for (of many
// documents, of parts of a sequence) stay with the unit.
//
// Thread safety: each function runs on the lane of its operation; the program orders them.
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
  // Host memory for all of it; a plan that offloads nothing of this kind needs none. The plan must outlive
  // it.
  static absl::StatusOr<std::unique_ptr<OffloadedActivations>> Make(const Plan& plan, at::Device device);

  bool Has(int unit) const { return homes_[unit].bytes.defined(); }

  // On the compute lane, behind the unit's forward.
  void Take(int unit, int slot, Unit* from);
  void Offload(int unit);
  void Drop(int unit);
  void Fetch(int unit);
  // On the compute lane, before the unit's backward.
  void PutBack(int unit, int slot, Unit* to);

  // Drops what is on the device: recording ended in the middle.
  void Forget();

 private:
  // A stretch of one storage.
  struct Stretch {
    const void* storage = nullptr;
    int64_t begin = 0;     // Its first number's place in the storage,
    int64_t numbers = 0;   // and how many there are.
    at::Tensor on_device;  // Flat; undefined while it is away.
    at::Tensor at_home;    // Flat.
  };
  // One of the tensors that a unit keeps.
  struct SavedActivations {
    size_t stretch = 0;
    int64_t begin = 0;  // Within the stretch.
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
  };
  struct Home {
    at::Tensor bytes;  // Flat, pinned for CUDA; undefined where the unit keeps all on the device.
    std::vector<Stretch> stretches;
    std::vector<std::optional<SavedActivations>> saved;  // In the unit's order; null: it stays with the unit.
  };

  void AddStretches(int slot, Unit* from, Home* home) const;
  void FindPlaces(Home* home) const;

  OffloadedActivations(std::unique_ptr<HostArena> host, at::Device device)
      : host_(std::move(host)), device_(device) {}

  std::unique_ptr<HostArena> host_;
  const at::Device device_;
  std::vector<Home> homes_;            // By unit.
  std::optional<c10::Stream> stream_;  // Of the compute lane; of CPU ranks there is none.
};

}  // namespace fsdpd

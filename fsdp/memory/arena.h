// Arena: one allocation that holds all buffers of a program, at the offsets of the plan. Addresses are fixed
// for the whole job, and a step allocates none of these buffers.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

class Arena {
 public:
  // RESOURCE_EXHAUSTED, with the requested size, if the device has too little memory.
  static absl::StatusOr<Arena> Make(int64_t bytes, at::Device device);

  // Over memory that LibTorch's allocator does not count; outside_bytes() does. REQUIRES: 256-byte alignment.
  static Arena Over(std::shared_ptr<void> memory, int64_t bytes, at::Device device);

  // A flat tensor over the buffer, not owning: the arena must outlive it. Views of the same address do not
  // share an autograd version counter.
  at::Tensor View(const Buffer& buffer, at::ScalarType type) const;

  int64_t bytes() const { return bytes_; }
  int64_t outside_bytes() const { return outside_bytes_; }

 private:
  Arena(at::Tensor storage, int64_t bytes) : storage_(std::move(storage)), bytes_(bytes) {}
  at::Tensor storage_;
  int64_t bytes_;
  int64_t outside_bytes_ = 0;
};

}  // namespace fsdpd

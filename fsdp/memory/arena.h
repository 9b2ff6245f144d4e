// One allocation that holds all buffers of a program at the offsets the plan gave them: fixed addresses for
// the whole job, and no allocation within a step.
#pragma once

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "fsdp/plan/program/program.h"

namespace fsdpd {

class Arena {
 public:
  // RESOURCE_EXHAUSTED with the bytes asked for when the device has not enough.
  static absl::StatusOr<Arena> Make(int64_t bytes, at::Device device);

  // In memory from elsewhere, which LibTorch's allocator does not count: outside_bytes(). REQUIRES: aligned
  // to 256.
  static Arena Over(std::shared_ptr<void> memory, int64_t bytes, at::Device device);

  // A flat tensor over the buffer's bytes. It does not own them: the arena must outlive it. Tensors of one
  // address share no autograd version counter.
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

#include "fsdp/memory/arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <absl/strings/str_format.h>

#include <utility>

#include "base/check.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

// Alignment of offsets in the plan, preferred by cuBLAS and NCCL. CPU allocators only guarantee 64.
constexpr int64_t kAlignment = 256;

}  // namespace

absl::StatusOr<Arena> Arena::Make(int64_t bytes, at::Device device) {
  FSDPD_CHECK(bytes >= 0);
  at::Tensor storage;
  const absl::Status status = CatchTorch([&] {
    at::Tensor raw = at::empty({bytes + kAlignment}, at::TensorOptions(at::kByte).device(device));
    const auto address = reinterpret_cast<uintptr_t>(raw.data_ptr());
    const int64_t skip = static_cast<int64_t>((kAlignment - address % kAlignment) % kAlignment);
    storage = raw.narrow(0, skip, bytes);
    return absl::OkStatus();
  });
  if (!status.ok()) {
    return absl::Status(
        status.code(), absl::StrFormat("arena of %d bytes on %s: %s", bytes, device.str(), status.message()));
  }
  return Arena(std::move(storage), bytes);
}

Arena Arena::Over(std::shared_ptr<void> memory, int64_t bytes, at::Device device) {
  FSDPD_CHECK(bytes >= 0 && reinterpret_cast<uintptr_t>(memory.get()) % kAlignment == 0);
  void* const base = memory.get();
  at::Tensor storage = at::for_blob(base, {bytes})
                           .deleter([memory = std::move(memory)](void*) {})
                           .options(at::TensorOptions(at::kByte).device(device))
                           .target_device(device)
                           .make_tensor();
  Arena arena(std::move(storage), bytes);
  arena.outside_bytes_ = bytes;
  return arena;
}

at::Tensor Arena::View(const Buffer& buffer, at::ScalarType type) const {
  const auto width = static_cast<int64_t>(c10::elementSize(type));
  FSDPD_CHECK(buffer.offset >= 0 && buffer.bytes >= 0 && buffer.offset + buffer.bytes <= bytes_);
  FSDPD_CHECK(buffer.offset % width == 0 && buffer.bytes % width == 0);
  char* begin = static_cast<char*>(storage_.data_ptr()) + buffer.offset;
  // Passes the device explicitly: for_blob would query the driver for each view.
  return at::for_blob(begin, {buffer.bytes / width})
      .options(at::TensorOptions(type).device(storage_.device()))
      .target_device(storage_.device())
      .make_tensor();
}

}  // namespace fsdpd

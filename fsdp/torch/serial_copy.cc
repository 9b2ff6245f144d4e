#include "fsdp/torch/serial_copy.h"

#include <ATen/ops/empty.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <optional>

#include "base/check.h"

namespace fsdpd {
namespace {

template <typename From, typename To>
at::Tensor CastAs(const at::Tensor& values, at::ScalarType type) {
  at::Tensor cast = at::empty(values.sizes(), at::TensorOptions().dtype(type));
  const From* const from = values.const_data_ptr<From>();
  To* const to = cast.mutable_data_ptr<To>();
  for (int64_t i = 0; i < values.numel(); ++i) to[i] = static_cast<To>(from[i]);
  return cast;
}

// Copies to a device through pinned memory, in parts: the thread fills one half while the device reads the
// other. Copies of pageable memory would share one staging buffer of the driver. The buffer is not
// thread-local: LibTorch's own thread-locals, which freeing needs, are destroyed first.
void CopyThroughPinned(const at::Tensor& values, const at::Tensor& to) {
  constexpr int64_t kPart = int64_t{4} << 20;
  struct Half {
    at::Tensor memory;
    std::optional<c10::Event> read;  // Recorded when the device has read it.
  };
  std::array<Half, 2> halves;
  size_t next = 0;
  const auto* const from = static_cast<const std::byte*>(values.const_data_ptr());
  const at::Tensor bytes = to.view({-1}).view(at::kByte);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(to.device().type()).getStream(to.device());
  for (int64_t begin = 0; begin < bytes.numel(); begin += kPart) {
    const int64_t part = std::min(kPart, bytes.numel() - begin);
    Half& half = halves[next++ % 2];
    if (half.read.has_value()) half.read->synchronize();
    if (!half.memory.defined())
      half.memory = at::empty({kPart}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
    std::memcpy(half.memory.mutable_data_ptr(), from + begin, static_cast<size_t>(part));
    bytes.narrow(0, begin, part).copy_(half.memory.narrow(0, 0, part), /*non_blocking=*/true);
    half.read.emplace(to.device().type());
    half.read->record(stream);
  }
  for (Half& half : halves) {
    if (half.read.has_value()) half.read->synchronize();
  }
}

}  // namespace

at::Tensor SerialCast(const at::Tensor& values, at::ScalarType type) {
  const at::ScalarType from = values.scalar_type();
  FSDPD_CHECK(values.is_cpu() && values.is_contiguous());
  if (from == type) return values;
  if (from == at::kBFloat16 && type == at::kFloat) return CastAs<c10::BFloat16, float>(values, type);
  if (from == at::kHalf && type == at::kFloat) return CastAs<c10::Half, float>(values, type);
  FSDPD_CHECK(from == at::kFloat);
  if (type == at::kBFloat16) return CastAs<float, c10::BFloat16>(values, type);
  FSDPD_CHECK(type == at::kHalf);
  return CastAs<float, c10::Half>(values, type);
}

void SerialCopy(const at::Tensor& values, const at::Tensor& to) {
  FSDPD_CHECK(values.is_cpu() && values.is_contiguous() && to.is_contiguous() &&
              values.numel() == to.numel() && values.scalar_type() == to.scalar_type());
  if (!to.is_cpu()) {
    CopyThroughPinned(values, to);
  } else if (values.nbytes() > 0) {
    std::memcpy(to.mutable_data_ptr(), values.const_data_ptr(), values.nbytes());
  }
}

}  // namespace fsdpd

#include "agent/ranks/freed_memory.h"

namespace fsdpd {

void FreedMemory::Poll(const ReadUsedBytes& used, absl::Time now) {
  if (settled_ || gone_ == absl::InfiniteFuture()) return;
  if (before_.has_value()) {
    if (const std::optional<int64_t> in_use = used(device_, gone_)) more_ = *in_use - *before_;
  }
  settled_ = !before_.has_value() || (more_.has_value() && *more_ <= kNoise) || now - gone_ >= kLongest;
}

void FreedMemory::AddTo(v1::FreedMemory* result) const {
  if (!before_.has_value()) return;
  if (more_.has_value() && *more_ <= kNoise) return result->set_gpus(result->gpus() + 1);
  v1::FreedMemory::Held* const held = result->add_held();
  held->set_device(device_);
  held->set_bytes(more_.value_or(0));
}

}  // namespace fsdpd

#include "fsdp/engine/offloaded_activations.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/model/activation_policy.h"

namespace fsdpd {
namespace {

constexpr bool kBeside = true;  // Asynchronous copy.

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSavedAlignBytes - 1) / kSavedAlignBytes * kSavedAlignBytes;
}

// Distance from a tensor's first element to its last, gaps included.
int64_t NumbersOf(const at::Tensor& tensor) {
  int64_t numbers = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) numbers += (tensor.size(d) - 1) * tensor.stride(d);
  return numbers;
}

const void* StorageOf(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

}  // namespace

absl::StatusOr<std::unique_ptr<OffloadedActivations>> OffloadedActivations::Make(const Plan& plan,
                                                                                 at::Device device) {
  const auto units = static_cast<int>(plan.model.units.size());
  int64_t bytes = 0;
  std::vector<int64_t> begins;
  for (int u = 0; u < units; ++u) {
    begins.push_back(bytes);
    bytes += RoundUp(OffloadedBytes(plan.spec, plan.model, u));
  }
  FSDPD_ASSIGN_OR_RETURN(auto host,
                         HostArena::Make(bytes, plan.spec.device, "activations that are offloaded"));
  std::unique_ptr<OffloadedActivations> saved(new OffloadedActivations(std::move(host), device));
  for (int u = 0; u < units; ++u) {
    saved->homes_.emplace_back();
    const int64_t own = OffloadedBytes(plan.spec, plan.model, u);
    if (own > 0) saved->homes_[u].bytes = at::from_blob(saved->host_->data() + begins[u], {own}, at::kByte);
  }
  return saved;
}

// Collects one range per storage: from the first element of any of its tensors to the last.
void OffloadedActivations::AddStretches(int slot, Unit* from, Home* home) const {
  from->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    home->saved.emplace_back();
    if (tensor->device() != device_ || tensor->numel() == 0) return;
    const int64_t begin = tensor->storage_offset(), numbers = NumbersOf(*tensor);
    auto found = std::find_if(home->stretches.begin(), home->stretches.end(),
                              [&](const Stretch& s) { return s.storage == StorageOf(*tensor); });
    if (found == home->stretches.end())
      found = home->stretches.insert(found, Stretch{StorageOf(*tensor), begin, numbers, *tensor, {}});
    if (found->on_device.scalar_type() != tensor->scalar_type()) return;
    const int64_t end = std::max(found->begin + found->numbers, begin + numbers);
    found->begin = std::min(found->begin, begin);
    found->numbers = end - found->begin;
    home->saved.back() = SavedActivations{static_cast<size_t>(found - home->stretches.begin()), begin,
                                          tensor->sizes().vec(), tensor->strides().vec()};
  });
}

void OffloadedActivations::FindPlaces(Home* home) const {
  int64_t end = 0;
  for (Stretch& stretch : home->stretches) {
    const auto bytes = stretch.numbers * static_cast<int64_t>(stretch.on_device.element_size());
    if (end + RoundUp(bytes) > home->bytes.numel()) continue;
    stretch.at_home = home->bytes.narrow(0, end, bytes).view(stretch.on_device.scalar_type());
    stretch.on_device = stretch.on_device.as_strided({stretch.numbers}, {1}, stretch.begin);
    end += RoundUp(bytes);
  }
}

// The unit holds empty tensors until PutBack.
void OffloadedActivations::Take(int unit, int slot, Unit* from) {
  if (device_.is_cuda() && !stream_.has_value())
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  Home& home = homes_[unit];
  home.saved.clear();
  home.stretches.clear();
  AddStretches(slot, from, &home);
  FindPlaces(&home);
  size_t next = 0;
  from->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    std::optional<SavedActivations>& saved = home.saved[next++];
    if (!saved.has_value()) return;
    const Stretch& stretch = home.stretches[saved->stretch];
    saved->begin -= stretch.begin;
    if (stretch.at_home.defined()) {
      *tensor = at::empty({0}, tensor->options());
    } else {
      saved.reset();
    }
  });
}

void OffloadedActivations::Offload(int unit) {
  for (Stretch& stretch : homes_[unit].stretches) {
    if (stretch.at_home.defined()) stretch.at_home.copy_(stretch.on_device, kBeside);
  }
}

void OffloadedActivations::Drop(int unit) {
  for (Stretch& stretch : homes_[unit].stretches) stretch.on_device = at::Tensor();
}

void OffloadedActivations::Fetch(int unit) {
  for (Stretch& stretch : homes_[unit].stretches) {
    if (!stretch.at_home.defined()) continue;
    {
      const c10::OptionalStreamGuard as_compute(stream_);
      stretch.on_device = at::empty({stretch.numbers}, stretch.at_home.options().device(device_));
    }
    stretch.on_device.copy_(stretch.at_home, kBeside);
  }
}

void OffloadedActivations::PutBack(int unit, int slot, Unit* to) {
  Home& home = homes_[unit];
  size_t next = 0;
  to->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    const std::optional<SavedActivations>& saved = home.saved[next++];
    if (!saved.has_value()) return;
    *tensor = home.stretches[saved->stretch].on_device.as_strided(saved->sizes, saved->strides, saved->begin);
  });
  Drop(unit);
}

void OffloadedActivations::Forget() {
  for (Home& home : homes_) home = Home{home.bytes, {}, {}};
}

}  // namespace fsdpd

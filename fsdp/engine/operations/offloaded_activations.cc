#include "fsdp/engine/operations/offloaded_activations.h"

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

constexpr bool kNonBlocking = true;  // Asynchronous copy.

int64_t RoundUp(int64_t bytes) {
  return (bytes + kSavedAlignBytes - 1) / kSavedAlignBytes * kSavedAlignBytes;
}

// Distance from a tensor's first element to its last, gaps included.
int64_t ElementSpanOf(const at::Tensor& tensor) {
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  return elements;
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
    saved->host_copies_.emplace_back();
    const int64_t own = OffloadedBytes(plan.spec, plan.model, u);
    if (own > 0)
      saved->host_copies_[u].bytes = at::from_blob(saved->host_->data() + begins[u], {own}, at::kByte);
  }
  return saved;
}

// Collects one range per storage: from the first element of any of its tensors to the last.
void OffloadedActivations::AddRanges(int slot, Unit* from, HostCopy* host_copy) const {
  from->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    host_copy->saved.emplace_back();
    if (tensor->device() != device_ || tensor->numel() == 0) return;
    const int64_t begin = tensor->storage_offset(), elements = ElementSpanOf(*tensor);
    auto found = std::find_if(host_copy->ranges.begin(), host_copy->ranges.end(),
                              [&](const StorageRange& s) { return s.storage == StorageOf(*tensor); });
    if (found == host_copy->ranges.end())
      found = host_copy->ranges.insert(found, StorageRange{StorageOf(*tensor), begin, elements, *tensor, {}});
    if (found->on_device.scalar_type() != tensor->scalar_type()) return;
    const int64_t end = std::max(found->begin + found->elements, begin + elements);
    found->begin = std::min(found->begin, begin);
    found->elements = end - found->begin;
    host_copy->saved.back() = SavedActivations{static_cast<size_t>(found - host_copy->ranges.begin()), begin,
                                               tensor->sizes().vec(), tensor->strides().vec()};
  });
}

void OffloadedActivations::AssignHostMemory(HostCopy* host_copy) const {
  int64_t end = 0;
  for (StorageRange& range : host_copy->ranges) {
    const auto bytes = range.elements * static_cast<int64_t>(range.on_device.element_size());
    if (end + RoundUp(bytes) > host_copy->bytes.numel()) continue;
    range.on_host = host_copy->bytes.narrow(0, end, bytes).view(range.on_device.scalar_type());
    range.on_device = range.on_device.as_strided({range.elements}, {1}, range.begin);
    end += RoundUp(bytes);
  }
}

// The unit holds empty tensors until PutBack.
void OffloadedActivations::Take(int unit, int slot, Unit* from) {
  if (device_.is_cuda() && !stream_.has_value())
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
  HostCopy& host_copy = host_copies_[unit];
  host_copy.saved.clear();
  host_copy.ranges.clear();
  AddRanges(slot, from, &host_copy);
  AssignHostMemory(&host_copy);
  size_t next = 0;
  from->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    std::optional<SavedActivations>& saved = host_copy.saved[next++];
    if (!saved.has_value()) return;
    const StorageRange& range = host_copy.ranges[saved->range];
    saved->begin -= range.begin;
    if (range.on_host.defined()) {
      *tensor = at::empty({0}, tensor->options());
    } else {
      saved.reset();
    }
  });
}

void OffloadedActivations::Offload(int unit) {
  for (StorageRange& range : host_copies_[unit].ranges) {
    if (range.on_host.defined()) range.on_host.copy_(range.on_device, kNonBlocking);
  }
}

void OffloadedActivations::Drop(int unit) {
  for (StorageRange& range : host_copies_[unit].ranges) range.on_device = at::Tensor();
}

void OffloadedActivations::Fetch(int unit) {
  for (StorageRange& range : host_copies_[unit].ranges) {
    if (!range.on_host.defined()) continue;
    {
      const c10::OptionalStreamGuard as_compute(stream_);
      range.on_device = at::empty({range.elements}, range.on_host.options().device(device_));
    }
    range.on_device.copy_(range.on_host, kNonBlocking);
  }
}

void OffloadedActivations::PutBack(int unit, int slot, Unit* to) {
  HostCopy& host_copy = host_copies_[unit];
  size_t next = 0;
  to->VisitSavedActivations(slot, [&](at::Tensor* tensor) {
    const std::optional<SavedActivations>& saved = host_copy.saved[next++];
    if (!saved.has_value()) return;
    *tensor = host_copy.ranges[saved->range].on_device.as_strided(saved->sizes, saved->strides, saved->begin);
  });
  Drop(unit);
}

void OffloadedActivations::Forget() {
  for (HostCopy& host_copy : host_copies_) host_copy = HostCopy{host_copy.bytes, {}, {}};
}

}  // namespace fsdpd

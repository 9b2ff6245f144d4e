#include "fsdp/model/native/fp8_watch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/tensor.h>

namespace fsdpd {
namespace {

constexpr int64_t kInfinityBits = 0x7f800000;

thread_local Fp8Watch* current = nullptr;

at::Tensor NoneSeen(at::Device device) {
  return at::tensor({int64_t{0}, int64_t{0}, kInfinityBits, int64_t{0}}).repeat({kFp8Classes, 1}).to(device);
}

}  // namespace

Fp8Watch::Fp8Watch(at::Device device) : seen_(NoneSeen(device)), none_(NoneSeen(device)) {
  static_assert(sizeof(kernels::Fp8Statistics) == 4 * sizeof(int64_t));
}

void Fp8Watch::Reset() {
  MutexLock lock(&mutex_);
  seen_.copy_(none_);
}

at::Tensor Fp8Watch::Read() {
  MutexLock lock(&mutex_);
  const at::Tensor counts = seen_.narrow(1, 0, 2).to(at::kFloat);
  const at::Tensor scales = seen_.narrow(1, 2, 2).to(at::kInt).view(at::kFloat);
  return at::cat({counts, scales}, 1).flatten();
}

Fp8Watch::Scope::Scope(Fp8Watch* watch) : before_(current) { current = watch; }
Fp8Watch::Scope::~Scope() { current = before_; }

kernels::Fp8Statistics* Fp8Watch::PlaceOf(Fp8Class kind) {
  if (current == nullptr) return nullptr;
  return static_cast<kernels::Fp8Statistics*>(current->seen_.data_ptr()) + static_cast<int>(kind);
}

void Fp8Watch::Add(Fp8Class kind, const at::Tensor& x, const at::Tensor& values, const at::Tensor& scales) {
  if (current == nullptr || x.size(0) == 0) return;
  const auto watched = [](const at::Tensor& of) { return of.slice(0, 0, of.size(0), kernels::kFp8Watched); };
  const at::Tensor is_number = watched(x).abs().gt(0);
  // Zero rows have no scale.
  const at::Tensor bits = scales.view(at::kInt).masked_select(x.eq(0).all(1).logical_not());
  const at::Tensor flushed = is_number.logical_and(watched(values).to(at::kFloat).eq(0));
  MutexLock lock(&current->mutex_);
  const at::Tensor seen = current->seen_[static_cast<int>(kind)];
  seen[0].add_(is_number.sum());
  seen[1].add_(flushed.sum());
  if (bits.numel() == 0) return;
  seen[2].copy_(at::minimum(seen[2], bits.min()));
  seen[3].copy_(at::maximum(seen[3], bits.max()));
}

}  // namespace fsdpd

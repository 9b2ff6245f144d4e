#include "fsdp/memory/step_pool.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <thread>

namespace fsdpd {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

}  // namespace

StepPool::StepPool(int device_index) : device_index_(device_index), id_(at::cuda::graph_pool_handle()) {}

StepPool::~StepPool() {
  for (int64_t i = 0; i < references_; ++i)
    allocator::get()->releasePool(static_cast<c10::DeviceIndex>(device_index_), id_);
}

StepPool::Scope::Scope(StepPool* pool) : pool_(pool) {
  if (pool_ == nullptr || pool_->open_++ > 0) return;
  ++pool_->references_;
  allocator::beginAllocateToPool(
      static_cast<c10::DeviceIndex>(pool_->device_index_), pool_->id_,
      [opener = std::this_thread::get_id()](cudaStream_t) { return std::this_thread::get_id() == opener; });
}

StepPool::Scope::~Scope() {
  if (pool_ == nullptr || --pool_->open_ > 0) return;
  allocator::endAllocateToPool(static_cast<c10::DeviceIndex>(pool_->device_index_), pool_->id_);
}

}  // namespace fsdpd

// step_pool.h for binaries built without --config=cuda.
#include "fsdp/memory/step_pool.h"

namespace fsdpd {

StepPool::StepPool(int device_index) : device_index_(device_index) {}

StepPool::~StepPool() = default;

StepPool::Scope::Scope(StepPool* pool) : pool_(pool) {}

StepPool::Scope::~Scope() = default;

}  // namespace fsdpd

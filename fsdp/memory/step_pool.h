// StepPool: private memory pool for tensors that live within a step, used while steps are recorded into CUDA
// graphs (fsdp/lane/lane_graph.h). A graph keeps the addresses of its recording, so no other tensor may get
// them. Steps that are not recorded and evaluations allocate from it too; otherwise a rank would hold memory
// for both.
//
// Counted like all memory of LibTorch's allocator. Without CUDA a scope does nothing. Not thread-safe; a
// scope affects allocations of its thread.
#pragma once

#include <cstdint>
#include <utility>

namespace fsdpd {

class StepPool {
 public:
  explicit StepPool(int device_index);
  // Returns free memory of the pool to the allocator.
  ~StepPool();
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  class Scope {
   public:
    explicit Scope(StepPool* pool);  // Null: does nothing.
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    [[maybe_unused]] StepPool* const pool_;
  };

 private:
  // Unused without CUDA.
  [[maybe_unused]] const int device_index_;
  std::pair<uint64_t, uint64_t> id_;         // LibTorch's id of the pool.
  [[maybe_unused]] int64_t references_ = 0;  // Released by the destructor.
  [[maybe_unused]] int open_ = 0;            // Nested scopes.
};

}  // namespace fsdpd

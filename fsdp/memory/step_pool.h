// Where tensors that live within a step come from while steps are recorded into graphs
// (fsdp/lane/lane_graph.h): a graph keeps the addresses that it was recorded with, so nothing that outlives a
// step may be given them. Steps that are not recorded take from it too, and evaluations, or a rank would hold
// the memory of both.
//
// Counted by the device's counters like all memory of LibTorch's allocator. Without CUDA a scope does
// nothing. Thread safety: none; a scope is about allocations of its thread.
#pragma once

#include <cstdint>
#include <utility>

namespace fsdpd {

class StepPool {
 public:
  explicit StepPool(int device_index);
  // What is free in it goes back to the allocator, for anybody.
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
  // Unused where there is no CUDA.
  [[maybe_unused]] const int device_index_;
  std::pair<uint64_t, uint64_t> id_;         // As LibTorch names it.
  [[maybe_unused]] int64_t references_ = 0;  // Given back in the end.
  [[maybe_unused]] int open_ = 0;            // Scopes, one within the other.
};

}  // namespace fsdpd

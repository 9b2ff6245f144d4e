// Optimizer offload in a training program: fetches state to the device for an Update and writes it back
// afterwards, with as many buckets in flight as fit into StagingCapacity. The limit is in bytes, not buckets,
// because bucket sizes differ: with a limit of two buckets, small buckets would delay large ones.
//
// Call order: Begin after Norm (the first Fetches do not wait for it). Then, per bucket with offloaded state,
// in order: FetchOf for its Update, then Updated. Finally Occupy. All do nothing if no state is offloaded.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/program/program_writer.h"

namespace fsdpd {

class StagedState {
 public:
  // The writer must outlive this object.
  StagedState(const Layout& layout, ProgramWriter* writer);

  void Begin();
  // -1: the bucket's state stays on the device.
  int FetchOf(int bucket) const { return fetch_[bucket]; }
  // Writes the state back, and fetches the next state into bytes that this frees. `snapshot`: -1 if there is
  // none.
  void Updated(int bucket, int update, int snapshot);
  void Occupy();

  // Both are -1 if no state is offloaded. No state of a step is in flight after last_use().
  int first_fetch() const { return buckets_.empty() ? -1 : fetch_[buckets_.front()]; }
  int last_use() const { return last_use_; }

 private:
  void FetchFitting();
  void Fetch(int bucket);

  const Layout& layout_;
  ProgramWriter* const writer_;
  std::vector<int> buckets_;  // Buckets with offloaded state.
  size_t next_ = 0;           // Index in buckets_ of the next Fetch.
  size_t written_back_ = 0;   // Number of buckets_ written back.
  int64_t free_bytes_;        // Free bytes of StagingCapacity.
  std::vector<int> freed_;    // By index in buckets_: the Fetch that may overwrite its bytes.
  std::vector<int> fetch_;    // By bucket; -1: none yet.
  int last_use_ = -1;
};

}  // namespace fsdpd

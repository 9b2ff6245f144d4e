#include "fsdp/plan/program/staged_state.h"

#include <algorithm>
#include <utility>

namespace fsdpd {

StagedState::StagedState(const Layout& layout, ProgramWriter* writer)
    : layout_(layout),
      writer_(writer),
      free_bytes_(StagingCapacity(layout)),
      fetch_(layout.buckets.size(), -1) {
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (!layout.buckets[b].offloaded.empty()) buckets_.push_back(static_cast<int>(b));
  }
}

void StagedState::Begin() { FetchFitting(); }

// All bytes are free after the last Offload.
void StagedState::FetchFitting() {
  for (; next_ < buckets_.size(); ++next_) {
    const int64_t bytes = layout_.buckets[buckets_[next_]].offloaded_bytes();
    if (bytes > free_bytes_) return;
    free_bytes_ -= bytes;
    Fetch(buckets_[next_]);
  }
}

void StagedState::Fetch(int bucket) {
  Instruction fetch{Op::kFetch, layout_.buckets[bucket].unit, bucket};
  fetch.uses = {{writer_->Find(BufferKind::kState, bucket), Access::kWrite}};
  fetch_[bucket] = writer_->Append(std::move(fetch), {last_use_});
  freed_.resize(written_back_, fetch_[bucket]);
}

// Offloads and Snapshots share a lane, so after the later one both have completed.
void StagedState::Updated(int bucket, int update, int snapshot) {
  const int state = writer_->Find(BufferKind::kState, bucket);
  Instruction offload{Op::kOffload, layout_.buckets[bucket].unit, bucket};
  offload.uses = {{state, Access::kRead}};
  last_use_ = writer_->Append(std::move(offload), {update, snapshot});
  writer_->Live(state, fetch_[bucket], last_use_);
  ++written_back_;
  free_bytes_ += layout_.buckets[bucket].offloaded_bytes();
  FetchFitting();
}

// A bucket's bytes are occupied until the Fetch that waited for its Offload.
void StagedState::Occupy() {
  freed_.resize(buckets_.size(), writer_->next());
  for (size_t n = 0; n < buckets_.size(); ++n) {
    const int end = freed_[n];
    writer_->Occupy(writer_->Find(BufferKind::kState, buckets_[n]), fetch_[buckets_[n]], end - 1);
  }
}

}  // namespace fsdpd

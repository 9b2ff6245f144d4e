#include "fsdp/plan/program/staged_state.h"

#include <algorithm>
#include <utility>

namespace fsdpd {

StagedState::StagedState(const Layout& layout, ProgramWriter* writer)
    : layout_(layout), writer_(writer), fetch_(layout.buckets.size(), -1) {
  for (size_t b = 0; b < layout.buckets.size(); ++b) {
    if (!layout.buckets[b].offloaded.empty()) buckets_.push_back(static_cast<int>(b));
  }
}

void StagedState::Begin() {
  for (size_t n = 0; n < kStagedBuckets; ++n) Fetch(/*free=*/-1);
}

// `free`: behind it the bytes are.
void StagedState::Fetch(int free) {
  if (next_ == buckets_.size()) return;
  const int bucket = buckets_[next_++];
  Instruction fetch;
  fetch.op = Op::kFetch;
  fetch.unit = layout_.buckets[bucket].unit;
  fetch.bucket = bucket;
  fetch.uses = {{writer_->Find(BufferKind::kState, bucket), Access::kWrite}};
  fetch_[bucket] = writer_->Append(std::move(fetch), {free});
}

// Offloads and Snapshots are on one lane: behind the later one both have ended.
void StagedState::Updated(int bucket, int update, int snapshot) {
  const int state = writer_->Find(BufferKind::kState, bucket);
  Instruction offload;
  offload.op = Op::kOffload;
  offload.unit = layout_.buckets[bucket].unit;
  offload.bucket = bucket;
  offload.uses = {{state, Access::kRead}};
  last_use_ = writer_->Append(std::move(offload), {update, snapshot});
  writer_->Live(state, fetch_[bucket], last_use_);
  Fetch(last_use_);
}

// A bucket's bytes are free where the Fetch comes that has waited for its Offload.
void StagedState::Occupy() {
  for (size_t n = 0; n < buckets_.size(); ++n) {
    const size_t next = n + kStagedBuckets;
    const int end = next < buckets_.size() ? fetch_[buckets_[next]] : writer_->next();
    writer_->Occupy(writer_->Find(BufferKind::kState, buckets_[n]), fetch_[buckets_[n]], end - 1);
  }
}

}  // namespace fsdpd

// The optimizer's state that lies in host memory, in a training program: brought to the device for an Update
// and put back behind it, as many buckets at a time as StagedRoom holds. It is bytes that are counted:
// buckets are of unlike sizes, and a large one would wait for another where only a small one is between them.
//
// Call order: Begin behind the norm, for which what comes first does not wait; then, of each bucket that has
// such state, in order, FetchOf for its Update and Updated; Occupy at the end. Of a job that has none, all of
// them do nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "fsdp/plan/program/program_writer.h"

namespace fsdpd {

class StagedState {
 public:
  // The writer must outlive this.
  StagedState(const Layout& layout, ProgramWriter* writer);

  void Begin();
  // -1: the bucket's state is on the device.
  int FetchOf(int bucket) const { return fetch_[bucket]; }
  // Puts it back, and brings what comes next into bytes that are free then. `snapshot`: -1 where there is
  // none.
  void Updated(int bucket, int update, int snapshot);
  void Occupy();

  // -1 where there is none. Behind the latter nothing of a step is staged any more.
  int first_fetch() const { return buckets_.empty() ? -1 : fetch_[buckets_.front()]; }
  int last_use() const { return last_use_; }

 private:
  void FetchWhatFits();
  void Fetch(int bucket);

  const Layout& layout_;
  ProgramWriter* const writer_;
  std::vector<int> buckets_;  // That have such state.
  size_t next_ = 0;           // Of these, the next to be brought,
  size_t gone_ = 0;           // and how many have been put back.
  int64_t room_;              // Bytes that none has which is there.
  std::vector<int> freed_;  // Of these, by their place there: the Fetch behind which its bytes are another's.
  std::vector<int> fetch_;  // By bucket, -1 before.
  int last_use_ = -1;
};

}  // namespace fsdpd

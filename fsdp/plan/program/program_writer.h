// Builder of programs: appends instructions, drops dependencies that lanes and other dependencies imply,
// records lifetime and occupancy of each buffer, and lays out the arena.
//
// Call order: Append, Live and Occupy in list order, then Finish once. Live and occupied differ: instructions
// may use a buffer while it is live, but its bytes stay occupied until some instruction has waited for the
// last use.
#pragma once

#include <array>
#include <vector>

#include "fsdp/plan/program/offsets.h"
#include "fsdp/plan/program/program.h"

namespace fsdpd {

class ProgramWriter {
 public:
  // Creates the buffers that the spec needs for every bucket. The layout must outlive this object.
  ProgramWriter(const Spec& spec, const Layout& layout, ProgramKind kind);

  // The buffer's index, or -1 if the bucket has none of that kind.
  int Find(BufferKind kind, int bucket) const { return buffer_of_[static_cast<size_t>(kind)][bucket]; }
  int64_t BytesOfBuffer(int buffer) const { return program_.buffers[buffer].bytes; }

  // Index of the next instruction, and of the last one on a lane or -1.
  int next() const { return static_cast<int>(program_.instructions.size()); }
  int last(LaneId lane) const { return last_[static_cast<size_t>(lane)]; }

  // Appends an instruction; sets its lane, group and role from the operation table. `after` may contain -1
  // (ignored), instructions on the same lane, and redundant ones; only necessary dependencies are stored.
  int Append(Instruction instruction, std::vector<int> after);

  // Adds a dependency on an instruction of the previous step. REQUIRES: called in list order.
  void AfterPrevious(int instruction, int previous);

  void Live(int buffer, int born, int dies) { program_.buffers[buffer].live.push_back({born, dies}); }
  void Occupy(int buffer, int begin, int end) { occupied_.push_back({buffer, begin, end}); }
  void OccupyAlways(int buffer);  // Shares bytes with no other buffer.

  // Lays out the arena.
  Program Finish();
  // Uses the offsets of another program with the same buffers.
  Program FinishWithin(const Program& other);

 private:
  // Vector clock: per lane, the last instruction known to be complete.
  using Done = std::array<int, kLanes>;

  void Place(Instruction* instruction) const;
  void AddBuffer(BufferKind kind, int bucket, int64_t bytes);
  void LayOut(bool state);
  bool Knows(const Done& done, int index) const;

  const Layout& layout_;
  Program program_;
  std::vector<Occupancy> occupied_;
  std::array<std::vector<int>, kBufferKinds> buffer_of_;  // By kind, then bucket.
  std::vector<Done> done_;
  std::array<Done, kLanes> lane_done_;
  std::array<int, kLanes> last_;
  // Per lane: which instructions of the previous step it has waited for, per lane.
  std::array<Done, kLanes> previous_done_;
};

}  // namespace fsdpd

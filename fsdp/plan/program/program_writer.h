// What a compiler of programs writes with: it appends instructions, leaves out dependencies that lanes and
// other dependencies imply, notes how long each buffer is live and occupied, and lays out the arena.
//
// Call order: Append and notes in the order of the list, then Finish once. Live and occupied differ: an
// instruction may use a buffer while it is live; its bytes are taken while it is occupied, which is longer
// where nothing has waited yet for the last use.
#pragma once

#include <array>
#include <vector>

#include "fsdp/plan/program/offsets.h"
#include "fsdp/plan/program/program.h"

namespace fsdpd {

class ProgramWriter {
 public:
  // Makes the buffers that the spec needs of every bucket. The layout must outlive this.
  ProgramWriter(const Spec& spec, const Layout& layout, ProgramKind kind);

  // The buffer's index, or -1 where the bucket has none of that kind.
  int Find(BufferKind kind, int bucket) const { return buffer_of_[static_cast<size_t>(kind)][bucket]; }
  int64_t BytesOfBuffer(int buffer) const { return program_.buffers[buffer].bytes; }

  // The index of the next instruction, and of the last one on a lane or -1.
  int next() const { return static_cast<int>(program_.instructions.size()); }
  int last(LaneId lane) const { return last_[static_cast<size_t>(lane)]; }

  // Sets lane, group and role, which the operation's row says. `after` may name -1 (nothing), the own lane,
  // and what is implied by another: only what is needed is kept.
  int Append(Instruction instruction, std::vector<int> after);

  // The instruction waits for one of the previous step. REQUIRES: called in the order of the list.
  void AfterPrevious(int instruction, int previous);

  void Live(int buffer, int born, int dies) { program_.buffers[buffer].live.push_back({born, dies}); }
  void Occupy(int buffer, int begin, int end) { occupied_.push_back({buffer, begin, end}); }
  void OccupyAlways(int buffer);  // No bytes are shared with anything.

  // Lays out the arena.
  Program Finish();
  // Buffers lie where those of another program lie, which has the same ones.
  Program FinishWithin(const Program& other);

 private:
  // Per lane: the last instruction known to be complete.
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
  // Per lane, and then per lane of the previous step: what the lane has waited for already.
  std::array<Done, kLanes> previous_done_;
};

}  // namespace fsdpd

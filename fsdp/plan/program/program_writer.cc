#include "fsdp/plan/program/program_writer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace fsdpd {

ProgramWriter::ProgramWriter(const Spec& spec, const Layout& layout, ProgramKind kind) : layout_(layout) {
  program_.kind = kind;
  last_.fill(-1);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    lane_done_[lane].fill(-1);
    previous_done_[lane].fill(-1);
  }
  for (std::vector<int>& buffers : buffer_of_) buffers.assign(layout.buckets.size(), -1);
  for (size_t i = 0; i < layout.buckets.size(); ++i) {
    const Bucket& bucket = layout.buckets[i];
    const int b = static_cast<int>(i);
    AddBuffer(BufferKind::kGathered, b, bucket.gather_buffer_bytes());
    if (bucket.trainable) {
      const int64_t bytes = bucket.grad_comm_bytes();
      AddBuffer(BufferKind::kReduce, b, bytes);
      if (bucket.types.grad_comm != DType::kFp32)
        AddBuffer(BufferKind::kWire, b, bytes + SumBytes(spec, bucket));
    }
    if (bucket.pieces > 1) AddBuffer(BufferKind::kReplica, b, bucket.replica_bytes());
    if (!bucket.offloaded.empty()) AddBuffer(BufferKind::kState, b, bucket.offloaded_bytes());
  }
}

void ProgramWriter::AddBuffer(BufferKind kind, int bucket, int64_t bytes) {
  buffer_of_[static_cast<size_t>(kind)][bucket] = static_cast<int>(program_.buffers.size());
  program_.buffers.push_back({kind, bucket, bytes, 0, {}});
}

bool ProgramWriter::Knows(const Done& done, int index) const {
  return done[static_cast<size_t>(program_.instructions[index].lane)] >= index;
}

void ProgramWriter::Place(Instruction* instruction) const {
  const Operation& operation = OperationOf(instruction->op);
  FSDPD_CHECK((instruction->unit >= 0) == (operation.acts_on != ActsOn::kStep));
  FSDPD_CHECK((instruction->bucket >= 0) == (operation.acts_on == ActsOn::kBucket));
  FSDPD_CHECK((instruction->micro_batch >= 0) == operation.of_micro_batch);
  const Bucket* bucket = instruction->bucket < 0 ? nullptr : &layout_.buckets[instruction->bucket];
  instruction->group = GroupOf(instruction->op, bucket);
  instruction->lane = LaneOf(instruction->op, bucket);
  instruction->role = operation.role;
}

int ProgramWriter::Append(Instruction instruction, std::vector<int> after) {
  Place(&instruction);
  const auto lane = static_cast<size_t>(instruction.lane);
  Done done = lane_done_[lane];
  std::sort(after.rbegin(), after.rend());
  for (const int other : after) {
    if (other < 0 || Knows(done, other)) continue;
    instruction.after.push_back(other);
    for (size_t i = 0; i < kLanes; ++i) done[i] = std::max(done[i], done_[other][i]);
  }
  std::sort(instruction.after.begin(), instruction.after.end());
  const int index = next();
  done[lane] = index;
  last_[lane] = index;
  lane_done_[lane] = done;
  done_.push_back(done);
  program_.instructions.push_back(std::move(instruction));
  return index;
}

void ProgramWriter::AfterPrevious(int instruction, int previous) {
  Instruction& at = program_.instructions[instruction];
  const LaneId other = program_.instructions[previous].lane;
  int& done = previous_done_[static_cast<size_t>(at.lane)][static_cast<size_t>(other)];
  if (other == at.lane || done >= previous) return;
  at.after_previous.push_back(previous);
  done = previous;
}

void ProgramWriter::OccupyAlways(int buffer) { Occupy(buffer, 0, kAlways); }

// Offloaded state is on the device during the next step, whose first gathers do not wait for it. It therefore
// shares bytes with no other buffer and is placed last.
Program ProgramWriter::Finish() {
  LayOut(/*state=*/false);
  const int64_t all_else = program_.arena_bytes;
  LayOut(/*state=*/true);
  program_.state_bytes = program_.arena_bytes - all_else;
  return std::move(program_);
}

// Places the kState buffers, or all others, after the buffers that already have an offset.
void ProgramWriter::LayOut(bool state) {
  std::vector<int> buffers, number(program_.buffers.size(), -1);
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    if ((program_.buffers[i].kind == BufferKind::kState) != state) continue;
    number[i] = static_cast<int>(buffers.size());
    buffers.push_back(static_cast<int>(i));
    bytes.push_back(program_.buffers[i].bytes);
  }
  std::vector<Occupancy> occupied;
  for (const Occupancy& each : occupied_) {
    if (number[each.buffer] >= 0) occupied.push_back({number[each.buffer], each.begin, each.end});
  }
  const Offsets offsets = AssignOffsets(bytes, std::move(occupied));
  for (size_t i = 0; i < buffers.size(); ++i)
    program_.buffers[buffers[i]].offset = program_.arena_bytes + offsets.offset[i];
  program_.arena_bytes += offsets.arena_bytes;
  program_.live_peak_bytes += offsets.live_peak_bytes;
}

Program ProgramWriter::FinishWithin(const Program& other) {
  FSDPD_CHECK(other.buffers.size() == program_.buffers.size());
  std::vector<int64_t> bytes;
  for (size_t i = 0; i < other.buffers.size(); ++i) {
    Buffer& buffer = program_.buffers[i];
    FSDPD_CHECK(other.buffers[i].kind == buffer.kind && other.buffers[i].bucket == buffer.bucket &&
                other.buffers[i].bytes == buffer.bytes);
    buffer.offset = other.buffers[i].offset;
    bytes.push_back(buffer.bytes);
  }
  program_.arena_bytes = other.arena_bytes;
  program_.state_bytes = other.state_bytes;
  program_.live_peak_bytes = LivePeakBytes(bytes, std::move(occupied_));
  return std::move(program_);
}

}  // namespace fsdpd

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
      const int64_t bytes = bucket.wire_bytes();
      AddBuffer(BufferKind::kReduce, b, bytes);
      if (bucket.types.wire != DType::kFp32) AddBuffer(BufferKind::kWire, b, bytes + SumBytes(spec, bucket));
    }
    if (bucket.pieces > 1) AddBuffer(BufferKind::kReplica, b, bucket.gathered_shard_bytes());
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
  const bool alone = operation.bucket_group != nullptr && instruction->group == Group::kSelf;
  instruction->lane = alone ? LaneId::kCompute : operation.lane;
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

Program ProgramWriter::Finish() {
  std::vector<int64_t> bytes;
  for (const Buffer& buffer : program_.buffers) bytes.push_back(buffer.bytes);
  const Offsets offsets = AssignOffsets(bytes, std::move(occupied_));
  for (size_t i = 0; i < bytes.size(); ++i) program_.buffers[i].offset = offsets.offset[i];
  program_.arena_bytes = offsets.arena_bytes;
  program_.live_peak_bytes = offsets.live_peak_bytes;
  return std::move(program_);
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
  program_.live_peak_bytes = LivePeakBytes(bytes, std::move(occupied_));
  return std::move(program_);
}

}  // namespace fsdpd

#include "fsdp/plan/program/testing/program_edits.h"

#include <algorithm>
#include <functional>

namespace fsdpd {
namespace {

// `moved` maps an instruction to its new index, or to -1 to drop the dependency.
void MoveEdges(Program* program, const std::function<int(int)>& moved) {
  for (Instruction& at : program->instructions) {
    for (std::vector<int>* edges : {&at.after, &at.after_previous}) {
      for (int& other : *edges) other = moved(other);
      edges->erase(std::remove(edges->begin(), edges->end(), -1), edges->end());
    }
  }
}

}  // namespace

void RemoveInstruction(Program* program, int index) {
  std::vector<Instruction>& list = program->instructions;
  int before = index - 1;
  while (before >= 0 && list[before].lane != list[index].lane) --before;
  list.erase(list.begin() + index);
  MoveEdges(program, [&](int other) { return other == index ? before : other > index ? other - 1 : other; });
  for (Buffer& buffer : program->buffers) {
    std::vector<Buffer::Interval> live;
    for (const Buffer::Interval& old : buffer.live) {
      const Buffer::Interval now{old.born > index ? old.born - 1 : old.born,
                                 old.dies >= index ? old.dies - 1 : old.dies};
      if (now.born <= now.dies) live.push_back(now);
    }
    buffer.live = live;
  }
}

void InsertInstruction(Program* program, int index, const Instruction& instruction) {
  program->instructions.insert(program->instructions.begin() + index, instruction);
  const auto moved = [&](int other) { return other >= index ? other + 1 : other; };
  MoveEdges(program, moved);
  for (Buffer& buffer : program->buffers) {
    for (Buffer::Interval& live : buffer.live) live = {moved(live.born), moved(live.dies)};
  }
}

}  // namespace fsdpd

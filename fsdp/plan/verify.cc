#include "fsdp/plan/verify.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

class Verifier {
 public:
  Verifier(const Program& program, const Layout& layout, const Spec& spec)
      : program_(program),
        layout_(layout),
        spec_(spec),
        units_(static_cast<int>(layout.units.size())),
        micro_batches_(static_cast<int>(spec.micro_batches_per_step())),
        sharded_(spec.strategy != Strategy::kNoShard) {}

  absl::Status Run() {
    FSDPD_RETURN_IF_ERROR(CheckDependencies());
    FSDPD_RETURN_IF_ERROR(CheckShape());
    FSDPD_RETURN_IF_ERROR(CheckBuffers());
    FSDPD_RETURN_IF_ERROR(CheckLifetimes());
    FSDPD_RETURN_IF_ERROR(CheckUses());
    FSDPD_RETURN_IF_ERROR(CheckRaces());
    FSDPD_RETURN_IF_ERROR(CheckArena());
    FSDPD_RETURN_IF_ERROR(CheckChain());
    FSDPD_RETURN_IF_ERROR(CheckReduces());
    FSDPD_RETURN_IF_ERROR(CheckUpdates());
    return CheckBudget();
  }

 private:
  // Vector clock: how many instructions of each lane are complete when this one is.
  using Clock = std::array<int, kLanes>;

  const Instruction& At(int index) const { return program_.instructions[index]; }
  int count() const { return static_cast<int>(program_.instructions.size()); }
  static size_t LaneOf(const Instruction& instruction) { return static_cast<size_t>(instruction.lane); }
  std::string Name(int index) const { return Describe(program_, layout_, index); }

  std::string Name(const Buffer& buffer) const {
    return absl::StrCat(buffer.kind == BufferKind::kGathered ? "gathered" : "reduce", " buffer of ",
                        layout_.units[buffer.unit].name);
  }

  static absl::Status Broken(int rule, const std::string& what) {
    return absl::InternalError(absl::StrCat("program breaks rule ", rule, ": ", what));
  }

  // a is complete before b starts, by lanes and dependencies alone.
  bool Before(int a, int b) const { return a != b && clock_[b][LaneOf(At(a))] >= place_[a]; }
  bool BeforeOrSame(int a, int b) const { return a == b || Before(a, b); }

  // Rule 1. Backward-pointing indices leave no room for a cycle.
  absl::Status CheckDependencies() {
    Clock in_lane{};
    std::array<Clock, kLanes> last{};
    for (int i = 0; i < count(); ++i) {
      const size_t lane = LaneOf(At(i));
      if (lane >= kLanes) return Broken(1, absl::StrCat("#", i, " is on no known lane"));
      Clock clock = last[lane];
      for (const int other : At(i).after) {
        if (other < 0 || other >= i) {
          return Broken(1, absl::StrCat(Name(i), " waits for #", other, ", which is not before it"));
        }
        if (At(other).lane == At(i).lane) {
          return Broken(1, absl::StrCat(Name(i), " waits for #", other, " of its own lane"));
        }
        for (size_t k = 0; k < kLanes; ++k) clock[k] = std::max(clock[k], clock_[other][k]);
      }
      clock[lane] = ++in_lane[lane];
      place_.push_back(in_lane[lane]);
      clock_.push_back(clock);
      last[lane] = clock;
    }
    return absl::OkStatus();
  }

  LaneId LaneFor(Op op) const {
    switch (op) {
      case Op::kGather:
        return sharded_ ? LaneId::kGather : LaneId::kCompute;
      case Op::kReduce:
      case Op::kNorm:
        return LaneId::kReduce;
      default:
        return LaneId::kCompute;
    }
  }

  // Rule 4's ground: lanes, units and micro-batches that exist.
  absl::Status CheckShape() const {
    for (int i = 0; i < count(); ++i) {
      const Instruction& at = At(i);
      if (at.lane != LaneFor(at.op)) {
        return Broken(4, absl::StrCat(Name(i), " belongs on the ", NameOf(LaneFor(at.op)), " lane"));
      }
      if (at.op != Op::kNorm && (at.unit < 0 || at.unit >= units_)) {
        return Broken(4, absl::StrCat(Name(i), " names unit ", at.unit, " of ", units_));
      }
      const bool per_micro_batch = at.op == Op::kForward || at.op == Op::kBackward || at.op == Op::kReduce;
      if (per_micro_batch && (at.micro_batch < 0 || at.micro_batch >= micro_batches_)) {
        return Broken(4,
                      absl::StrCat(Name(i), " names micro-batch ", at.micro_batch, " of ", micro_batches_));
      }
    }
    return absl::OkStatus();
  }

  // One buffer of each kind per unit, large enough.
  absl::Status CheckBuffers() {
    for (std::vector<int>& of_kind : buffer_of_) of_kind.assign(units_, -1);
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      if (buffer.unit < 0 || buffer.unit >= units_)
        return Broken(3, absl::StrCat("buffer ", b, " has no unit"));
      int& slot = buffer_of_[static_cast<size_t>(buffer.kind)][buffer.unit];
      if (slot >= 0) return Broken(3, absl::StrCat(Name(buffer), " exists twice"));
      slot = static_cast<int>(b);
      const DType type = buffer.kind == BufferKind::kGathered ? spec_.compute : DType::kFp32;
      const int64_t needs = layout_.units[buffer.unit].bucket_elements * BytesOf(type);
      if (buffer.bytes < needs) {
        return Broken(3, absl::StrCat(Name(buffer), " has ", buffer.bytes, " bytes and needs ", needs));
      }
    }
    for (int u = 0; u < units_; ++u) {
      if (buffer_of_[0][u] < 0 || buffer_of_[1][u] < 0) {
        return Broken(3, absl::StrCat(layout_.units[u].name, " lacks a buffer"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLifetimes() const {
    for (const Buffer& buffer : program_.buffers) {
      const Op fills = buffer.kind == BufferKind::kGathered ? Op::kGather : Op::kBackward;
      for (const Buffer::Interval& live : buffer.live) {
        const std::string lives = absl::StrCat(Name(buffer), " lives from #", live.born, " to #", live.dies);
        if (live.born < 0 || live.born > live.dies || live.dies >= count()) {
          return Broken(2, lives + ", which is no range");
        }
        if (At(live.born).op != fills || At(live.born).unit != buffer.unit) {
          return Broken(2, absl::StrCat(lives, ", but ", Name(live.born), " does not fill it"));
        }
      }
    }
    return absl::OkStatus();
  }

  bool Uses(int index, BufferKind kind, Access access) const {
    const int buffer = buffer_of_[static_cast<size_t>(kind)][At(index).unit];
    for (const BufferUse& use : At(index).uses) {
      if (use.buffer == buffer && use.access == access) return true;
    }
    return false;
  }

  // What an instruction of this kind touches by its nature, whatever the program says.
  std::vector<std::pair<BufferKind, Access>> Needs(const Instruction& at) const {
    switch (at.op) {
      case Op::kGather:
        return {{BufferKind::kGathered, Access::kWrite}};
      case Op::kForward:
        return {{BufferKind::kGathered, Access::kRead}};
      case Op::kBackward:
        if (!at.accumulate)
          return {{BufferKind::kGathered, Access::kRead}, {BufferKind::kReduce, Access::kWrite}};
        return {{BufferKind::kGathered, Access::kRead},
                {BufferKind::kReduce, Access::kRead},
                {BufferKind::kReduce, Access::kWrite}};
      case Op::kReduce:
        return {{BufferKind::kReduce, Access::kRead}, {BufferKind::kReduce, Access::kWrite}};
      case Op::kUpdate:
        if (sharded_) return {};
        return {{BufferKind::kReduce, Access::kRead}};
      default:
        return {};
    }
  }

  // Rule 2, one instruction at a time: it declares what it touches, within that buffer's lifetime.
  absl::Status CheckUses() const {
    for (int i = 0; i < count(); ++i) {
      for (const auto& [kind, access] : Needs(At(i))) {
        if (Uses(i, kind, access)) continue;
        return Broken(
            2,
            absl::StrCat(Name(i), " does not declare that it ", access == Access::kRead ? "reads" : "writes",
                         " the ", Name(program_.buffers[buffer_of_[static_cast<size_t>(kind)][At(i).unit]])));
      }
      for (const BufferUse& use : At(i).uses) {
        if (use.buffer < 0 || use.buffer >= static_cast<int>(program_.buffers.size())) {
          return Broken(2, absl::StrCat(Name(i), " uses buffer ", use.buffer, ", which does not exist"));
        }
        FSDPD_RETURN_IF_ERROR(CheckAlive(use.buffer, i));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAlive(int b, int index) const {
    const Buffer& buffer = program_.buffers[b];
    const auto after = std::upper_bound(buffer.live.begin(), buffer.live.end(), index,
                                        [](int i, const Buffer::Interval& live) { return i < live.born; });
    if (after == buffer.live.begin() || index > std::prev(after)->dies) {
      return Broken(2, absl::StrCat(Name(index), " uses the ", Name(buffer), " outside of its lifetime"));
    }
    const Buffer::Interval& live = *std::prev(after);
    if (!BeforeOrSame(live.born, index)) return Race(live.born, index, b);
    if (index != live.born && !BeforeOrSame(index, live.dies)) return Race(index, live.dies, b);
    return absl::OkStatus();
  }

  // Rule 2, pairs: of two instructions that touch a buffer, one of them writing, one is complete before the
  // other.
  absl::Status CheckRaces() const {
    std::vector<int> last_write(program_.buffers.size(), -1);
    std::vector<std::vector<int>> reads(program_.buffers.size());
    for (int i = 0; i < count(); ++i) {
      for (const BufferUse& use : At(i).uses) {
        const int write = last_write[use.buffer];
        if (write >= 0 && !BeforeOrSame(write, i)) return Race(write, i, use.buffer);
        if (use.access == Access::kRead) {
          if (write < 0) return Broken(2, absl::StrCat(Name(i), " reads what nothing has written"));
          reads[use.buffer].push_back(i);
          continue;
        }
        for (const int read : reads[use.buffer]) {
          if (!BeforeOrSame(read, i)) return Race(read, i, use.buffer);
        }
        reads[use.buffer].clear();
        last_write[use.buffer] = i;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Race(int first, int second, int buffer) const {
    return Broken(2, absl::StrCat(Name(second), " uses the ", Name(program_.buffers[buffer]), " while ",
                                  Name(first), " may still run"));
  }

  // Rule 3. Between two neighbouring buffer edges the same buffers own every byte: their lifetimes there must
  // follow each other.
  absl::Status CheckArena() const {
    std::map<int64_t, std::vector<int>> owners;  // By the segment's first byte.
    for (const Buffer& buffer : program_.buffers) {
      if (buffer.offset < 0 || buffer.offset % 256 != 0 ||
          buffer.bytes > program_.arena_bytes - buffer.offset) {
        return Broken(3, absl::StrCat(Name(buffer), " at offset ", buffer.offset, " with ", buffer.bytes,
                                      " bytes is not aligned or leaves the arena of ", program_.arena_bytes));
      }
      owners[buffer.offset];
    }
    for (size_t b = 0; b < program_.buffers.size(); ++b) {
      const Buffer& buffer = program_.buffers[b];
      const auto end = owners.lower_bound(buffer.offset + buffer.bytes);
      for (auto it = owners.find(buffer.offset); it != end; ++it) it->second.push_back(static_cast<int>(b));
    }
    for (const auto& [begin, buffers] : owners) FSDPD_RETURN_IF_ERROR(CheckSegment(begin, buffers));
    return absl::OkStatus();
  }

  absl::Status CheckSegment(int64_t begin, const std::vector<int>& buffers) const {
    std::vector<std::pair<Buffer::Interval, int>> lives;
    for (const int b : buffers) {
      for (const Buffer::Interval& live : program_.buffers[b].live) lives.emplace_back(live, b);
    }
    std::sort(lives.begin(), lives.end(),
              [](const auto& a, const auto& b) { return a.first.born < b.first.born; });
    for (size_t k = 0; k < lives.size(); ++k) {
      const auto& [live, b] = lives[k];
      if (!BeforeOrSame(live.born, live.dies)) return Race(live.born, live.dies, b);
      if (k == 0 || Before(lives[k - 1].first.dies, lives[k].first.born)) continue;
      return Broken(
          3, absl::StrCat(Name(lives[k].first.born), " fills the ", Name(program_.buffers[lives[k].second]),
                          " at offset ", begin, " while the ", Name(program_.buffers[lives[k - 1].second]),
                          " lives there until ", Name(lives[k - 1].first.dies)));
    }
    return absl::OkStatus();
  }

  int64_t Key(int unit, int micro_batch) const { return static_cast<int64_t>(micro_batch) * units_ + unit; }

  // Where `op` runs for each unit and micro-batch; exactly once each.
  absl::Status FindEach(Op op, std::vector<int>* where) const {
    where->assign(static_cast<size_t>(units_) * micro_batches_, -1);
    for (int i = 0; i < count(); ++i) {
      if (At(i).op != op) continue;
      int& slot = (*where)[Key(At(i).unit, At(i).micro_batch)];
      if (slot >= 0) return Broken(op == Op::kReduce ? 5 : 4, absl::StrCat(Name(i), " repeats ", Name(slot)));
      slot = i;
    }
    return absl::OkStatus();
  }

  absl::Status Missing(int rule, Op op, int unit, int micro_batch) const {
    return Broken(
        rule, absl::StrCat(NameOf(op), " ", layout_.units[unit].name, " mb ", micro_batch, " is missing"));
  }

  absl::Status Order(int rule, int first, int second) const {
    if (Before(first, second)) return absl::OkStatus();
    return Broken(rule, absl::StrCat(Name(second), " may start before ", Name(first), " is complete"));
  }

  // Rule 4. The memory plan counts one micro-batch in flight, so the next one starts after this one's
  // backward.
  absl::Status CheckChain() {
    FSDPD_RETURN_IF_ERROR(FindEach(Op::kForward, &forward_));
    FSDPD_RETURN_IF_ERROR(FindEach(Op::kBackward, &backward_));
    for (int m = 0; m < micro_batches_; ++m) {
      for (int u = 0; u < units_; ++u) {
        if (forward_[Key(u, m)] < 0) return Missing(4, Op::kForward, u, m);
        if (backward_[Key(u, m)] < 0) return Missing(4, Op::kBackward, u, m);
      }
      for (int u = 1; u < units_; ++u) {
        FSDPD_RETURN_IF_ERROR(Order(4, forward_[Key(u - 1, m)], forward_[Key(u, m)]));
        FSDPD_RETURN_IF_ERROR(Order(4, backward_[Key(u, m)], backward_[Key(u - 1, m)]));
      }
      FSDPD_RETURN_IF_ERROR(Order(4, forward_[Key(units_ - 1, m)], backward_[Key(units_ - 1, m)]));
      if (m > 0) FSDPD_RETURN_IF_ERROR(Order(4, backward_[Key(0, m - 1)], forward_[Key(0, m)]));
    }
    return absl::OkStatus();
  }

  // Rule 5. Sharded: each Backward sets the bucket and its Reduce sets the shard once, then adds. no_shard:
  // each Backward sets the bucket once, then adds, and one Reduce follows the last.
  absl::Status CheckReduces() const {
    std::vector<int> reduce;
    FSDPD_RETURN_IF_ERROR(FindEach(Op::kReduce, &reduce));
    for (int u = 0; u < units_; ++u) {
      for (int m = 0; m < micro_batches_; ++m) {
        const int backward = backward_[Key(u, m)];
        if (At(backward).accumulate != (!sharded_ && m > 0)) return WrongAccumulate(backward);
        const int at = reduce[Key(u, m)];
        const bool wanted = sharded_ || m == micro_batches_ - 1;
        if (wanted && at < 0) return Missing(5, Op::kReduce, u, m);
        if (!wanted && at >= 0)
          return Broken(5, absl::StrCat(Name(at), " comes before the last micro-batch"));
        if (!wanted) continue;
        FSDPD_RETURN_IF_ERROR(Order(5, backward, at));
        if (At(at).accumulate != (sharded_ && m > 0)) return WrongAccumulate(at);
        if (sharded_ && m > 0) FSDPD_RETURN_IF_ERROR(Order(5, reduce[Key(u, m - 1)], at));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WrongAccumulate(int index) const {
    return Broken(5, absl::StrCat(Name(index), At(index).accumulate ? " adds to what it must set"
                                                                    : " sets what it must add to"));
  }

  // Rule 6. An Update changes main parameters, so it also waits for the Gathers that read them.
  absl::Status CheckUpdates() const {
    int norm = -1;
    std::vector<int> update(units_, -1);
    for (int i = 0; i < count(); ++i) {
      if (At(i).op == Op::kNorm) {
        if (norm >= 0) return Broken(6, absl::StrCat(Name(i), " repeats ", Name(norm)));
        norm = i;
      }
      if (At(i).op != Op::kUpdate) continue;
      if (update[At(i).unit] >= 0)
        return Broken(6, absl::StrCat(Name(i), " repeats ", Name(update[At(i).unit])));
      update[At(i).unit] = i;
    }
    if (norm < 0) return Broken(6, "Norm is missing");
    for (int u = 0; u < units_; ++u) {
      if (update[u] < 0) return Broken(6, absl::StrCat("Update ", layout_.units[u].name, " is missing"));
      FSDPD_RETURN_IF_ERROR(Order(6, norm, update[u]));
    }
    for (int i = 0; i < count(); ++i) {
      if (At(i).op == Op::kReduce) FSDPD_RETURN_IF_ERROR(Order(6, i, norm));
      if (At(i).op == Op::kGather) FSDPD_RETURN_IF_ERROR(Order(6, i, update[At(i).unit]));
    }
    return absl::OkStatus();
  }

  // Rule 7.
  absl::Status CheckBudget() const {
    if (program_.live_peak_bytes > program_.arena_bytes) {
      return Broken(7, absl::StrCat("the arena of ", program_.arena_bytes,
                                    " bytes is below its live peak of ", program_.live_peak_bytes));
    }
    if (spec_.memory_budget_bytes <= 0 || program_.arena_bytes <= spec_.memory_budget_bytes)
      return absl::OkStatus();
    return Broken(7, absl::StrCat("the arena of ", program_.arena_bytes, " bytes is over the budget of ",
                                  spec_.memory_budget_bytes));
  }

  const Program& program_;
  const Layout& layout_;
  const Spec& spec_;
  const int units_;
  const int micro_batches_;
  const bool sharded_;
  std::vector<int> place_;  // 1-based, within the lane.
  std::vector<Clock> clock_;
  std::array<std::vector<int>, 2> buffer_of_;  // By kind, then unit.
  std::vector<int> forward_, backward_;        // By Key(unit, micro-batch).
};

}  // namespace

absl::Status Verify(const Program& program, const Layout& layout, const Spec& spec) {
  return Verifier(program, layout, spec).Run();
}

}  // namespace fsdpd

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "fsdp/plan/verify/verify_checks.h"

namespace fsdpd {
namespace {

// Buffer indices by kind, then bucket; -1: none.
using BufferTable = std::array<std::vector<int>, kBufferKinds>;

BufferTable TableOf(const VerifyCase& verified) {
  BufferTable table;
  for (std::vector<int>& of_kind : table) of_kind.assign(verified.buckets(), -1);
  for (size_t b = 0; b < verified.program.buffers.size(); ++b) {
    const Buffer& buffer = verified.program.buffers[b];
    table[static_cast<size_t>(buffer.kind)][buffer.bucket] = static_cast<int>(b);
  }
  return table;
}

// FP8: one byte per element, aligned, then one scale per row.
int64_t BytesInFp8(const Bucket& bucket) {
  constexpr int64_t kScaleBytes = 4, kAlign = 256;
  return (bucket.bucket_elements + kAlign - 1) / kAlign * kAlign +
         bucket.bucket_elements / bucket.row * kScaleBytes;
}

int64_t BytesNeeded(const VerifyCase& verified, const Buffer& buffer) {
  const Bucket& bucket = verified.layout.buckets[buffer.bucket];
  const DType read = bucket.choices_begin >= 0 ? DType::kFp32 : verified.spec.precision.compute;
  switch (buffer.kind) {
    case BufferKind::kGathered:
      if (bucket.read_in_place()) return 0;
      if (bucket.row > 0) return BytesInFp8(bucket);
      return bucket.bucket_elements * BytesOf(read);
    case BufferKind::kReplica:
      return bucket.shard_elements * BytesOf(read);
    case BufferKind::kReduce:
      return bucket.bucket_elements * BytesOf(verified.grad_type());
    case BufferKind::kWire: {
      // The GPU kernel adds sums directly to the gradient.
      const bool sums = verified.spec.device == DeviceKind::kCpu &&
                        (verified.micro_batches() > 1 || verified.spec.precision.main_grads != DType::kFp32);
      return bucket.bucket_elements * BytesOf(verified.grad_type()) +
             (sums ? bucket.shard_elements * BytesOf(DType::kFp32) : 0);
    }
    case BufferKind::kState:
      return verified.OffloadedBytes(buffer.bucket);
  }
  return 0;
}

enum class Wanted { kYes, kNo, kEither };

Wanted IsWanted(const VerifyCase& verified, BufferKind kind, int index) {
  const Bucket& bucket = verified.layout.buckets[index];
  if (kind == BufferKind::kGathered) return Wanted::kYes;
  if (kind == BufferKind::kReplica) return verified.publishes() ? Wanted::kYes : Wanted::kNo;
  // Evaluation has the training program's buffers but uses none of these kinds.
  if (!verified.training()) return Wanted::kEither;
  if (kind == BufferKind::kState) return verified.OffloadsState(index) ? Wanted::kYes : Wanted::kNo;
  if (!bucket.trainable) return Wanted::kNo;
  if (kind == BufferKind::kReduce) return Wanted::kYes;
  return verified.grad_type() == DType::kFp32 ? Wanted::kNo : Wanted::kYes;
}

absl::Status CheckOne(const VerifyCase& verified, int index) {
  const Buffer& buffer = verified.program.buffers[index];
  const auto kind = static_cast<int>(buffer.kind);
  if (kind < 0 || kind >= kBufferKinds || buffer.bucket < 0 || buffer.bucket >= verified.buckets())
    return RuleError(3, "buffer ", index, " has an unknown kind or bucket");
  if (IsWanted(verified, buffer.kind, buffer.bucket) == Wanted::kNo)
    return RuleError(3, verified.Name(buffer), " is unused");
  const int64_t needs = BytesNeeded(verified, buffer);
  if (buffer.bytes < needs)
    return RuleError(3, verified.Name(buffer), " has ", buffer.bytes, " bytes and needs ", needs);
  const int64_t arena = verified.program.arena_bytes;
  if (buffer.offset < 0 || buffer.offset % 256 != 0 || buffer.bytes > arena - buffer.offset) {
    return RuleError(3, verified.Name(buffer), " at offset ", buffer.offset, " with ", buffer.bytes,
                     " bytes is not aligned or leaves the arena of ", arena);
  }
  int last = -1;
  for (const Buffer::Interval& live : buffer.live) {
    if (live.born <= last || live.dies < live.born || live.dies >= verified.count()) {
      return RuleError(2, verified.Name(buffer), " lives from #", live.born, " to #", live.dies,
                       ", which is empty or overlaps the previous interval");
    }
    last = live.dies;
  }
  return absl::OkStatus();
}

// Peak of live bytes by declared lifetimes.
int64_t DeclaredPeak(const Program& program) {
  std::vector<int64_t> change(program.instructions.size() + 1, 0);
  for (const Buffer& buffer : program.buffers) {
    for (const Buffer::Interval& live : buffer.live) {
      change[live.born] += buffer.bytes;
      change[live.dies + 1] -= buffer.bytes;
    }
  }
  int64_t now = 0, peak = 0;
  for (const int64_t bytes : change) peak = std::max(peak, now += bytes);
  return peak;
}

absl::Status CheckSizes(const VerifyCase& verified) {
  const Program& program = verified.program;
  if (program.live_peak_bytes > program.arena_bytes) {
    return RuleError(7, "the arena of ", program.arena_bytes, " bytes is below its live peak of ",
                     program.live_peak_bytes);
  }
  const int64_t peak = DeclaredPeak(program);
  if (verified.training() && peak > program.live_peak_bytes) {
    return RuleError(7, "lifetimes add up to ", peak, " bytes, more than the live peak of ",
                     program.live_peak_bytes);
  }
  const int64_t budget = verified.spec.memory_budget_bytes;
  if (budget <= 0 || program.arena_bytes <= budget) return absl::OkStatus();
  return RuleError(7, "the arena of ", program.arena_bytes, " bytes is over the budget of ", budget);
}

// One access of an instruction. Resources are numbered: buffers; per bucket main parameters (with moments),
// their offloaded state, and gradient shards; the results of Norm; the loss; stage transfer slots; and per
// unit saved activations, on the device and in host memory.
struct Touch {
  int resource = 0;
  bool reads = false;
  bool writes = false;
};

class MemoryCheck {
 public:
  MemoryCheck(const VerifyCase& verified, const HappensBefore& order)
      : case_(verified),
        order_(order),
        table_(TableOf(verified)),
        buffers_(static_cast<int>(verified.program.buffers.size())) {}

  absl::Status Run() {
    touches_.resize(case_.count());
    for (int i = 0; i < case_.count(); ++i) {
      AddNatural(i);
      FSDPD_RETURN_IF_ERROR(AddDeclared(i));
    }
    FSDPD_RETURN_IF_ERROR(FindTenancies());
    FSDPD_RETURN_IF_ERROR(CheckRaces());
    return CheckArena();
  }

 private:
  // A buffer's lifetime in the first step, starting at its first access.
  struct Tenancy {
    int buffer = 0;
    Buffer::Interval declared;
    EventIndex first = -1;
    std::array<EventIndex, kLanes> last;
  };

  int Main(int bucket) const { return buffers_ + bucket; }
  int Home(int bucket) const { return buffers_ + case_.buckets() + bucket; }
  int Grad(int bucket) const { return buffers_ + 2 * case_.buckets() + bucket; }
  int NormResult() const { return buffers_ + 3 * case_.buckets(); }
  int LossSum() const { return NormResult() + 1; }
  // Stage transfers use slots in rotation: a pass frees the slot of its input, and a Send frees that of a
  // pass's output.
  enum Way { kIn, kHiddenOut, kGradOut };
  static constexpr int kWays = 3;
  int Place(Way way, int number) const {
    return LossSum() + 1 + (number % kStageTransferSlots) * kWays + way;
  }
  int Kept(int unit) const { return Place(kIn, 0) + kWays * kStageTransferSlots + unit; }
  int HostCopy(int unit) const { return Kept(case_.units()) + unit; }
  int Resources() const { return HostCopy(case_.units()); }
  bool LastOfAll(int unit) const {
    const StagePlace& stage = case_.layout.stage;
    return stage.number + 1 == stage.count && unit == case_.units() - 1;
  }

  // At the end of a step, no transfer is in flight.
  void EndStageTransfers(int i) {
    if (case_.layout.stage.count == 1) return;
    for (int place = 0; place < kStageTransferSlots; ++place) {
      for (const Way way : {kIn, kHiddenOut, kGradOut}) Writes(i, Place(way, place));
    }
  }

  void AddStageTransfers(int i) {
    const Instruction& at = case_.At(i);
    if (case_.layout.stage.count == 1) return;
    const bool forward = at.op != Op::kBackward, back = at.op != Op::kForward;
    const int run = case_.RunOf(at.unit);
    const bool first = at.unit == case_.RunBegin(run), last = at.unit == case_.RunEnd(run) - 1;
    if (forward && first && case_.ReceivesInput(run)) TakesIn(i, Op::kReceive);
    if (forward && last && case_.SendsOutput(run)) Writes(i, Place(kHiddenOut, NumberOf(Op::kSend, at)));
    if (back && last && case_.SendsOutput(run)) TakesIn(i, Op::kReceiveGrad);
    if (back && first && case_.ReceivesInput(run)) Writes(i, Place(kGradOut, NumberOf(Op::kSendGrad, at)));
  }

  // Slot index of a transfer by `op`, by order of first use; both kinds of receives share one order.
  int NumberOf(Op op, const Instruction& at) {
    std::map<std::tuple<Op, int, int>, int>& known = op == Op::kSend       ? hidden_out_
                                                     : op == Op::kSendGrad ? grads_out_
                                                                           : in_;
    const auto next = static_cast<int>(known.size());
    return known.try_emplace({op, at.unit, at.micro_batch}, next).first->second;
  }
  void TakesIn(int i, Op op) { Add(i, Place(kIn, NumberOf(op, case_.At(i))), true, true); }
  int BufferOf(BufferKind kind, int bucket) const { return table_[static_cast<size_t>(kind)][bucket]; }

  void Add(int index, int resource, bool reads, bool writes) {
    for (Touch& touch : touches_[index]) {
      if (touch.resource != resource) continue;
      touch.reads |= reads;
      touch.writes |= writes;
      return;
    }
    touches_[index].push_back({resource, reads, writes});
  }
  void Reads(int index, int resource) { Add(index, resource, true, false); }
  void Writes(int index, int resource) { Add(index, resource, false, true); }

  // Location of a reduced gradient: with no_shard it stays in the buffer.
  int ReducedGrad(int bucket) const {
    return case_.spec.shards_optimizer() ? Grad(bucket) : BufferOf(BufferKind::kReduce, bucket);
  }

  void AddNatural(int i) {
    const Instruction& at = case_.At(i);
    switch (at.op) {
      case Op::kGatherReplica:
        Reads(i, Main(at.bucket));
        if (case_.publishes()) Writes(i, BufferOf(BufferKind::kReplica, at.bucket));
        return;
      case Op::kGather:
        Reads(i, case_.publishes() ? BufferOf(BufferKind::kReplica, at.bucket) : Main(at.bucket));
        Writes(i, BufferOf(BufferKind::kGathered, at.bucket));
        return;
      case Op::kForward:
        for (const int b : case_.BucketsOf(at.unit)) ReadsParams(i, b);
        if (LastOfAll(at.unit)) Writes(i, LossSum());
        Writes(i, Kept(at.unit));
        return AddStageTransfers(i);
      case Op::kRelease:  // Ends a lifetime like a write: later accesses must wait for it.
        for (const int b : case_.layout.units[at.unit].buckets) Writes(i, BufferOf(BufferKind::kGathered, b));
        return;
      case Op::kBackward:
        AddBackward(i);
        Add(i, Kept(at.unit), true, true);
        return AddStageTransfers(i);
      case Op::kBackwardWeights:
        return AddBackward(i);
      case Op::kForwardBackward:
        AddBackward(i);
        Writes(i, LossSum());
        return AddStageTransfers(i);
      case Op::kReduce:
        return AddReduce(i);
      case Op::kReduceOuter:
        if (case_.layout.buckets[at.bucket].trainable) Add(i, ReducedGrad(at.bucket), true, true);
        return;
      case Op::kNorm:
        for (int b = 0; b < case_.buckets(); ++b) {
          if (case_.layout.buckets[b].trainable) Reads(i, ReducedGrad(b));
        }
        Reads(i, LossSum());
        Writes(i, NormResult());
        return EndStageTransfers(i);
      case Op::kUpdate:
        return AddUpdate(i);
      case Op::kSnapshot:
        Reads(i, Main(at.bucket));
        if (case_.OffloadsState(at.bucket)) Reads(i, BufferOf(BufferKind::kState, at.bucket));
        return;
      case Op::kFetch:
      case Op::kOffload:
        return AddStaging(i);
      case Op::kOffloadActivations:
      case Op::kDropActivations:
      case Op::kFetchActivations:
        return AddMovingActivations(i);
      case Op::kLoss:
        Reads(i, LossSum());
        return EndStageTransfers(i);
      case Op::kSend:
        return Reads(i, Place(kHiddenOut, NumberOf(at.op, at)));
      case Op::kSendGrad:
        return Reads(i, Place(kGradOut, NumberOf(at.op, at)));
      case Op::kSendTiedGrad:
        return Reads(i, ReducedGrad(at.bucket));
      case Op::kReceiveTiedGrad:
        return Add(i, ReducedGrad(at.bucket), at.accumulate, true);
      case Op::kReceive:
      case Op::kReceiveGrad:
        return Writes(i, Place(kIn, NumberOf(at.op, at)));
    }
  }

  void AddUpdate(int i) {
    const int bucket = case_.At(i).bucket;
    if (case_.layout.buckets[bucket].trainable) Reads(i, ReducedGrad(bucket));
    Reads(i, NormResult());
    Add(i, Main(bucket), true, true);
    if (case_.OffloadsState(bucket)) Add(i, BufferOf(BufferKind::kState, bucket), true, true);
  }

  // If the bucket has no offloaded state, CheckFlow rejects it.
  void AddStaging(int i) {
    const Instruction& at = case_.At(i);
    if (!case_.OffloadsState(at.bucket)) return;
    const int home = Home(at.bucket), state = BufferOf(BufferKind::kState, at.bucket);
    const bool brings = StagingOf(at.op) == Staging::kFetches;
    Reads(i, brings ? home : state);
    Writes(i, brings ? state : home);
  }

  void AddMovingActivations(int i) {
    const Instruction& at = case_.At(i);
    if (at.op == Op::kOffloadActivations) Reads(i, Kept(at.unit));
    if (at.op == Op::kFetchActivations) Reads(i, HostCopy(at.unit));
    Writes(i, at.op == Op::kOffloadActivations ? HostCopy(at.unit) : Kept(at.unit));
  }

  void ReadsParams(int i, int bucket) {
    Reads(i, BufferOf(BufferKind::kGathered, bucket));
    if (case_.layout.buckets[bucket].read_in_place()) Reads(i, Main(bucket));
  }

  void AddBackward(int i) {
    const Instruction& at = case_.At(i);
    for (const int b : case_.BucketsOf(at.unit)) {
      if (case_.ReadsParams(at, b)) ReadsParams(i, b);
      // Deferred weight gradients do not change the gradients of other parameters.
      const bool reads = at.accumulate || at.op == Op::kBackwardWeights;
      if (case_.layout.buckets[b].trainable) Add(i, BufferOf(BufferKind::kReduce, b), reads, true);
    }
  }

  void AddReduce(int i) {
    const Instruction& at = case_.At(i);
    if (!case_.layout.buckets[at.bucket].trainable) return;
    Reads(i, BufferOf(BufferKind::kReduce, at.bucket));
    Add(i, ReducedGrad(at.bucket), at.accumulate, true);
    const int wire = BufferOf(BufferKind::kWire, at.bucket);
    if (wire >= 0) Writes(i, wire);
  }

  // Rule 2: declared uses match what the operations access. Norm's reads and a Release may be undeclared.
  absl::Status AddDeclared(int i) {
    const Instruction& at = case_.At(i);
    for (const BufferUse& use : at.uses) {
      if (use.buffer < 0 || use.buffer >= buffers_)
        return RuleError(2, case_.Name(i), " uses buffer ", use.buffer, ", which does not exist");
    }
    if (at.op != Op::kNorm && at.op != Op::kRelease) {
      for (const Touch& touch : touches_[i]) {
        if (touch.resource >= buffers_) continue;
        if (touch.reads && !Declares(at, touch.resource, Access::kRead)) return Unsaid(i, touch, "reads");
        if (touch.writes && !Declares(at, touch.resource, Access::kWrite)) return Unsaid(i, touch, "writes");
      }
    }
    for (const BufferUse& use : at.uses) {
      Add(i, use.buffer, use.access == Access::kRead, use.access == Access::kWrite);
    }
    return absl::OkStatus();
  }

  static bool Declares(const Instruction& at, int buffer, Access access) {
    return std::any_of(at.uses.begin(), at.uses.end(),
                       [&](const BufferUse& use) { return use.buffer == buffer && use.access == access; });
  }

  absl::Status Unsaid(int i, const Touch& touch, const char* does) const {
    return RuleError(2, case_.Name(i), " does not declare that it ", does, " the ",
                     case_.Name(case_.program.buffers[touch.resource]));
  }

  // Rule 2: every access is within a lifetime, and the first access of a lifetime writes.
  absl::Status FindTenancies() {
    first_tenancy_.resize(buffers_);
    for (int b = 0; b < buffers_; ++b) {
      first_tenancy_[b] = static_cast<int>(tenancies_.size());
      for (const Buffer::Interval& live : case_.program.buffers[b].live) {
        tenancies_.push_back({b, live, -1, {}});
        tenancies_.back().last.fill(-1);
      }
    }
    for (int i = 0; i < case_.count(); ++i) {
      for (const Touch& touch : touches_[i]) {
        if (touch.resource >= buffers_) continue;
        Tenancy* tenancy = TenancyAt(touch.resource, i);
        const std::string name = case_.Name(case_.program.buffers[touch.resource]);
        if (tenancy == nullptr)
          return RuleError(2, case_.Name(i), " uses the ", name, " outside of its lifetime");
        if (tenancy->first < 0) {
          // A wire buffer is written and read by the same Reduce; all others are read by later instructions.
          const bool wire = case_.program.buffers[touch.resource].kind == BufferKind::kWire;
          if (!touch.writes || (touch.reads && !wire) || case_.At(i).op == Op::kRelease)
            return RuleError(2, case_.Name(i), " uses the ", name, ", which was not written");
          tenancy->first = i;
        }
        tenancy->last[static_cast<size_t>(case_.At(i).lane)] = i;
      }
    }
    return absl::OkStatus();
  }

  Tenancy* TenancyAt(int b, int index) {
    const std::vector<Buffer::Interval>& live = case_.program.buffers[b].live;
    const auto after = std::upper_bound(live.begin(), live.end(), index,
                                        [](int i, const Buffer::Interval& life) { return i < life.born; });
    if (after == live.begin() || index > std::prev(after)->dies) return nullptr;
    return &tenancies_[first_tenancy_[b] + (after - live.begin()) - 1];
  }

  // No races: of two accesses to a resource, one of them a write, one happens before the other. List order is
  // consistent with all dependencies, so afterwards the list can be interpreted sequentially.
  absl::Status CheckRaces() const {
    struct History {
      History() { reads.fill(-1); }

      EventIndex write = -1;
      std::array<EventIndex, kLanes> reads;  // Last read per lane; it is ordered after earlier ones.
    };
    std::vector<History> histories(Resources());
    for (EventIndex now = 0; now < 2 * case_.count(); ++now) {
      // The engine hands over the loss at the end of a step.
      if (now == case_.count()) histories[LossSum()] = History();
      for (const Touch& touch : touches_[order_.IndexOf(now)]) {
        History& history = histories[touch.resource];
        if (history.write >= 0 && !order_.Before(history.write, now)) {
          return Race(history.write, now, touch.resource);
        }
        if (!touch.writes) {
          history.reads[order_.LaneOf(now)] = now;
          continue;
        }
        for (const EventIndex read : history.reads) {
          if (read >= 0 && !order_.Before(read, now)) return Race(read, now, touch.resource);
        }
        history.reads.fill(-1);
        history.write = now;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Race(EventIndex first, EventIndex second, int resource) const {
    std::string what;
    int rule = 6;
    if (resource < buffers_) {
      what = absl::StrCat("the ", case_.Name(case_.program.buffers[resource]));
      rule = 2;
    } else if (resource < Home(0)) {
      what = absl::StrCat("the main parameters of ", case_.BucketName(resource - Main(0)));
    } else if (resource < Grad(0)) {
      what = absl::StrCat("the offloaded state of ", case_.BucketName(resource - Home(0)));
      rule = 11;
    } else if (resource < NormResult()) {
      what = absl::StrCat("the gradient shard of ", case_.BucketName(resource - Grad(0)));
      rule = 5;
    } else if (resource >= Kept(0)) {
      what = absl::StrCat("the saved activations of ",
                          case_.layout.units[(resource - Kept(0)) % case_.units()].name);
      rule = 12;
    } else {
      what = resource > LossSum() ? "the stage transfers" : resource == LossSum() ? "the loss" : "the norm";
      if (resource > LossSum()) rule = 10;
    }
    return RuleError(rule, order_.Name(second, first), " uses ", what, " while ",
                     case_.Name(order_.IndexOf(first)), " may still run");
  }

  // Rule 3: overlapping buffers overlap at the start of one of them, so it is enough to check there that the
  // lifetimes of all buffers at that byte do not overlap in time.
  absl::Status CheckArena() const {
    std::map<int64_t, std::vector<int>> over;  // Start offset of a buffer -> buffers covering that byte.
    const std::vector<Buffer>& buffers = case_.program.buffers;
    for (const Buffer& buffer : buffers) over[buffer.offset];
    for (int b = 0; b < buffers_; ++b) {
      const auto end = over.lower_bound(buffers[b].offset + buffers[b].bytes);
      for (auto it = over.lower_bound(buffers[b].offset); it != end; ++it) it->second.push_back(b);
    }
    for (const auto& [offset, at_byte] : over) FSDPD_RETURN_IF_ERROR(CheckByte(offset, at_byte));
    return absl::OkStatus();
  }

  absl::Status CheckByte(int64_t offset, const std::vector<int>& buffers) const {
    std::vector<const Tenancy*> lives;
    for (const int b : buffers) {
      const size_t count = case_.program.buffers[b].live.size();
      for (size_t k = 0; k < count; ++k) {
        const Tenancy& tenancy = tenancies_[first_tenancy_[b] + k];
        if (tenancy.first >= 0) lives.push_back(&tenancy);
      }
    }
    if (lives.empty()) return absl::OkStatus();
    std::sort(lives.begin(), lives.end(),
              [](const Tenancy* a, const Tenancy* b) { return a->declared.born < b->declared.born; });
    for (size_t k = 1; k < lives.size(); ++k) {
      const bool apart = lives[k - 1]->declared.dies < lives[k]->declared.born;
      if (!apart || !Over(*lives[k - 1], lives[k]->first)) {
        return Overlap(offset, *lives[k - 1], *lives[k], lives[k]->first);
      }
    }
    const EventIndex next = lives.front()->first + case_.count();
    if (!Over(*lives.back(), next)) return Overlap(offset, *lives.back(), *lives.front(), next);
    return absl::OkStatus();
  }

  bool Over(const Tenancy& tenancy, EventIndex next) const {
    return std::all_of(tenancy.last.begin(), tenancy.last.end(),
                       [&](EventIndex last) { return last < 0 || order_.Before(last, next); });
  }

  absl::Status Overlap(int64_t offset, const Tenancy& before, const Tenancy& after, EventIndex fills) const {
    const std::vector<Buffer>& buffers = case_.program.buffers;
    const EventIndex last = *std::max_element(before.last.begin(), before.last.end());
    return RuleError(3, order_.Name(fills, 0), " fills the ", case_.Name(buffers[after.buffer]),
                     " at offset ", offset, " while the ", case_.Name(buffers[before.buffer]),
                     " is live there until ", case_.Name(last));
  }

  const VerifyCase& case_;
  const HappensBefore& order_;
  const BufferTable table_;
  const int buffers_;
  std::vector<std::vector<Touch>> touches_;                              // By instruction.
  std::vector<Tenancy> tenancies_;                                       // Sorted by buffer, then time.
  std::vector<int> first_tenancy_;                                       // By buffer.
  std::map<std::tuple<Op, int, int>, int> in_, hidden_out_, grads_out_;  // Key: operation, unit, micro-batch.
};

}  // namespace

absl::Status CheckBuffers(const VerifyCase& verified) {
  std::array<std::vector<bool>, kBufferKinds> seen;
  for (std::vector<bool>& of_kind : seen) of_kind.assign(verified.buckets(), false);
  for (size_t i = 0; i < verified.program.buffers.size(); ++i) {
    FSDPD_RETURN_IF_ERROR(CheckOne(verified, static_cast<int>(i)));
    const Buffer& buffer = verified.program.buffers[i];
    std::vector<bool>& of_kind = seen[static_cast<size_t>(buffer.kind)];
    if (of_kind[buffer.bucket]) return RuleError(3, verified.Name(buffer), " is duplicated");
    of_kind[buffer.bucket] = true;
  }
  for (int b = 0; b < verified.buckets(); ++b) {
    for (int kind = 0; kind < kBufferKinds; ++kind) {
      Buffer absent;
      absent.kind = static_cast<BufferKind>(kind);
      absent.bucket = b;
      if (seen[kind][b] || IsWanted(verified, absent.kind, b) != Wanted::kYes) continue;
      return RuleError(3, verified.Name(absent), " is missing");
    }
  }
  return CheckSizes(verified);
}

absl::Status CheckMemory(const VerifyCase& verified, const HappensBefore& order) {
  return MemoryCheck(verified, order).Run();
}

}  // namespace fsdpd

#include "fsdp/plan/verify/testing/rehearsal.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <utility>

namespace fsdpd {
namespace {

using Value = uint64_t;

// Odd, so that multiplication is invertible; linear, so that reductions distribute over sums.
constexpr Value kInnerFactor = 0x9e3779b97f4a7c15;
constexpr Value kOuterFactor = 0xbf58476d1ce4e5b9;

Value Mix(std::initializer_list<Value> values) {
  Value hash = 0x243f6a8885a308d3;
  for (Value value : values) {
    hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
    hash ^= hash >> 31;
    hash *= 0x94d049bb133111eb;
    hash ^= hash >> 29;
  }
  return hash;
}

enum Tag : Value {
  kMainTag = 1,
  kGatherTag,
  kReplicaTag,
  kForwardTag,
  kBackwardTag,
  kPartTag,
  kNormTag,
  kBeforeTag,
  kBehindTag,
  kUpdateTag,
  kTwinTag,
  kPutOffTag,
  kHomeTag,
  kKeptTag
};

// Values computed by operations. Used by both Rehearse and RunReference, so equal inputs give equal results.
Value Hidden(int unit, int micro_batch, Value input, Value params) {
  return Mix({kForwardTag, Value(unit), Value(micro_batch), input, params});
}
Value HiddenGrad(int unit, Value output_grad, Value hidden, Value params) {
  return Mix({kBackwardTag, Value(unit), output_grad, hidden, params});
}
Value Part(int bucket, Value hidden_grad) { return Mix({kPartTag, Value(bucket), hidden_grad}); }
// Deferred weight gradient of a backward with this incoming gradient.
Value DeferredPasses(Value hidden_grad) { return Mix({kPutOffTag, hidden_grad}); }
Value Updated(Value main, Value grad, Value norm) { return Mix({kUpdateTag, main, grad, norm}); }
// Saved activations of a forward with this input.
Value Kept(Value hidden) { return Mix({kKeptTag, hidden}); }
// Offloaded state of a bucket with these main parameters.
Value Home(Value main) { return Mix({kHomeTag, main}); }
Value Gathered(const Bucket& bucket, Value main) {
  return Mix({kGatherTag, bucket.pieces > 1 ? Mix({kReplicaTag, main}) : main});
}

std::vector<int> BucketsOf(const Layout& layout, int unit) {
  std::vector<int> buckets = layout.units[unit].buckets;
  const int lender = layout.units[unit].borrows;
  if (lender < 0) return buckets;
  buckets.insert(buckets.end(), layout.units[lender].buckets.begin(), layout.units[lender].buckets.end());
  return buckets;
}

// Whether a pass of the unit reads any of these buckets.
bool Reads(const Layout& layout, Op pass, int unit, int bucket) {
  return !IsBackwardOnly(pass) || layout.units[unit].backward_reads || layout.buckets[bucket].unit != unit;
}

std::vector<Value> InitialMain(const Layout& layout) {
  std::vector<Value> main;
  for (size_t b = 0; b < layout.buckets.size(); ++b) main.push_back(Mix({kMainTag, b}));
  return main;
}

// The arena as cells, split wherever a buffer starts or ends.
class Bytes {
 public:
  explicit Bytes(const Program& program) {
    std::set<int64_t> edges;
    for (const Buffer& buffer : program.buffers) edges.insert({buffer.offset, buffer.offset + buffer.bytes});
    const std::vector<int64_t> sorted(edges.begin(), edges.end());
    const auto at = [&](int64_t edge) {
      return std::lower_bound(sorted.begin(), sorted.end(), edge) - sorted.begin();
    };
    cells_.assign(sorted.size(), 0);
    for (const Buffer& buffer : program.buffers) {
      ranges_.emplace_back(at(buffer.offset), at(buffer.offset + buffer.bytes));
    }
  }

  void Write(int buffer, Value value) {
    const auto [begin, end] = ranges_[buffer];
    std::fill(cells_.begin() + begin, cells_.begin() + end, value);
  }

  Value Read(int buffer) const {
    const auto [begin, end] = ranges_[buffer];
    if (begin == end) return 0;
    const bool one = std::all_of(cells_.begin() + begin, cells_.begin() + end,
                                 [&, first = cells_[begin]](Value cell) { return cell == first; });
    return one ? cells_[begin] : Mix({cells_[begin], cells_[end - 1], Value(begin), Value(end)});
  }

 private:
  std::vector<Value> cells_;
  std::vector<std::pair<int64_t, int64_t>> ranges_;  // By buffer: its range of cells.
};

// Inputs from other stages for a micro-batch at the first and at the last unit of a run; 0 if there are none.
Value FromBefore(const Layout& layout, int unit, int micro_batch) {
  return layout.stage.ReceivesInput(unit)
             ? Mix({kBeforeTag, static_cast<Value>(unit), static_cast<Value>(micro_batch)})
             : 0;
}
Value FromBehind(const Layout& layout, int unit, int micro_batch) {
  return layout.stage.SendsOutput(unit)
             ? Mix({kBehindTag, static_cast<Value>(unit), static_cast<Value>(micro_batch)})
             : 0;
}

// Gradient from the other stage for a tied-embedding replica.
Value TiedReplicaOf(int bucket) { return Mix({kTwinTag, static_cast<Value>(bucket)}); }

// Stage transfer slots, used in rotation.
class Places {
 public:
  explicit Places(const Program& program) {
    for (const Instruction& i : program.instructions) {
      if (StageTransferOf(i.op) == StageTransfer::kNone || i.micro_batch < 0) continue;
      const auto next = counts_[CandidateOf(i.op)]++;
      number_[{i.op, i.unit, i.micro_batch}] = next;
    }
  }

  // Slot of a transfer by that operation from or to a pass.
  Value& At(Op op, const Instruction& of) {
    return values_[CandidateOf(op)][number_[{op, of.unit, of.micro_batch}] % kStageTransferSlots];
  }

 private:
  static int CandidateOf(Op op) { return op == Op::kSend ? 0 : op == Op::kSendGrad ? 1 : 2; }

  std::array<int, 3> counts_{};
  std::map<std::tuple<Op, int, int>, int> number_;  // Key: operation, unit, micro-batch.
  std::array<std::array<Value, kStageTransferSlots>, 3> values_{};
};

class Run {
 public:
  Run(const Program& program, const Layout& layout, const Spec& spec, int steps, uint32_t seed)
      : program_(program),
        layout_(layout),
        spec_(spec),
        count_(static_cast<int>(program.instructions.size())),
        random_(seed),
        bytes_(program),
        places_(program),
        main_(InitialMain(layout)),
        home_(main_.size()),
        grad_(layout.buckets.size(), 0),
        kept_(layout.units.size(), 0),
        host_copy_(layout.units.size(), 0),
        keeps_away_(layout.units.size(), false),
        done_(static_cast<size_t>(steps) * count_, false) {
    if (program.kind == ProgramKind::kTraining && spec.checkpoint.saves()) {
      copies_.assign(static_cast<size_t>(steps) * main_.size(), 0);
    }
    for (const Instruction& i : program.instructions) {
      if (i.op == Op::kOffloadActivations || i.op == Op::kDropActivations || i.op == Op::kFetchActivations)
        keeps_away_[i.unit] = true;
    }
    std::transform(main_.begin(), main_.end(), home_.begin(), Home);
    for (std::vector<int>& of_kind : buffer_) of_kind.assign(layout.buckets.size(), -1);
    for (size_t b = 0; b < program.buffers.size(); ++b) {
      buffer_[static_cast<size_t>(program.buffers[b].kind)][program.buffers[b].bucket] = static_cast<int>(b);
    }
    for (int now = 0; now < steps * count_; ++now) lanes_[LaneOf(now)].push_back(now);
    // Random speed per lane, different in each run.
    for (int& weight : weight_) weight = 1 << (4 * (random_() % 4));
  }

  Outcome Finish() {
    while (TakeTurn()) {
    }
    for (size_t lane = 0; lane < kLanes; ++lane) finished_ &= next_[lane] == lanes_[lane].size();
    for (size_t b = 0; b < main_.size(); ++b) {
      if (IsStaged(static_cast<int>(b)) && home_[b] != Home(main_[b])) main_[b] = Mix({random_()});
    }
    return {main_, results_, copies_, finished_};
  }

 private:
  struct Running {
    bool active = false;
    std::vector<std::pair<int, Value>> reads;   // Buffer, and its value at the start.
    std::vector<std::pair<int, Value>> writes;  // Buffer, and the garbage that it must hold until the end.
    Value main = 0;                             // Bucket's main parameters at the start.
    Value kept = 0;                             // Unit's saved activations at the start.
  };

  const Instruction& At(int now) const { return program_.instructions[now % count_]; }
  size_t LaneOf(int now) const { return static_cast<size_t>(At(now).lane); }
  int BufferOf(BufferKind kind, int bucket) const { return buffer_[static_cast<size_t>(kind)][bucket]; }

  bool Ready(int now) const {
    const int base = now - now % count_;
    for (const int other : At(now).after) {
      if (!done_[base + other]) return false;
    }
    if (base == 0) return true;
    for (const int other : At(now).after_previous) {
      if (!done_[base - count_ + other]) return false;
    }
    return true;
  }

  // Starts or ends one instruction on a ready lane, chosen by lane speed.
  bool TakeTurn() {
    int total = 0;
    std::array<int, kLanes> chance{};
    for (size_t lane = 0; lane < kLanes; ++lane) {
      if (next_[lane] == lanes_[lane].size()) continue;
      if (!running_[lane].active && !Ready(lanes_[lane][next_[lane]])) continue;
      total += chance[lane] = weight_[lane];
    }
    if (total == 0) return false;
    auto pick = static_cast<int>(random_() % total);
    size_t lane = 0;
    while (pick >= chance[lane]) pick -= chance[lane++];
    const int now = lanes_[lane][next_[lane]];
    if (!running_[lane].active) {
      Start(now, &running_[lane]);
    } else {
      End(now, &running_[lane]);
      done_[now] = true;
      ++next_[lane];
    }
    return true;
  }

  void Start(int now, Running* running) {
    *running = {true, {}, {}, 0};
    const Instruction& at = At(now);
    switch (at.op) {
      case Op::kGatherReplica:
        return Touch(BufferKind::kReplica, at.bucket, false, true, running);
      case Op::kGather:
        if (layout_.buckets[at.bucket].pieces > 1)
          Touch(BufferKind::kReplica, at.bucket, true, false, running);
        return Touch(BufferKind::kGathered, at.bucket, false, true, running);
      case Op::kForward:
      case Op::kBackward:
      case Op::kBackwardWeights:
      case Op::kForwardBackward:
        return StartPass(at, running);
      case Op::kRelease:  // The bytes are immediately reused by others.
        for (const int b : layout_.units[at.unit].buckets) {
          Touch(BufferKind::kGathered, b, false, true, running);
        }
        return;
      case Op::kReduce:
        Touch(BufferKind::kReduce, at.bucket, true, !spec_.shards_optimizer(), running);
        return Touch(BufferKind::kWire, at.bucket, false, true, running);
      case Op::kReduceOuter:
        if (!spec_.shards_optimizer()) Touch(BufferKind::kReduce, at.bucket, true, true, running);
        return;
      case Op::kNorm:
        if (spec_.shards_optimizer()) return;
        for (size_t b = 0; b < layout_.buckets.size(); ++b) {
          Touch(BufferKind::kReduce, static_cast<int>(b), true, false, running);
        }
        return;
      case Op::kUpdate:
        if (!spec_.shards_optimizer()) Touch(BufferKind::kReduce, at.bucket, true, false, running);
        Touch(BufferKind::kState, at.bucket, true, true, running);
        running->main = std::exchange(main_[at.bucket], Mix({random_(), random_()}));
        return;
      case Op::kSnapshot:
        Touch(BufferKind::kState, at.bucket, true, false, running);
        running->main = main_[at.bucket];
        return;
      case Op::kFetch:
        running->main = home_[at.bucket];
        return Touch(BufferKind::kState, at.bucket, false, true, running);
      case Op::kOffload:
        home_[at.bucket] = Mix({random_()});
        return Touch(BufferKind::kState, at.bucket, true, false, running);
      case Op::kOffloadActivations:
      case Op::kDropActivations:
      case Op::kFetchActivations:
        return StartMovingActivations(at, running);
      case Op::kReceive:
      case Op::kReceiveGrad:
        places_.At(at.op, at) = Mix({random_()});
        return;
      case Op::kSendTiedGrad:
      case Op::kReceiveTiedGrad:
        if (spec_.shards_optimizer()) return;
        return Touch(BufferKind::kReduce, at.bucket, at.op == Op::kSendTiedGrad || at.accumulate,
                     at.op == Op::kReceiveTiedGrad, running);
      case Op::kLoss:
      case Op::kSend:
      case Op::kSendGrad:
        return;
    }
  }

  int Units() const { return static_cast<int>(layout_.units.size()); }

  void Touch(BufferKind kind, int bucket, bool reads, bool writes, Running* running) {
    const int buffer = BufferOf(kind, bucket);
    if (buffer < 0) return;
    if (reads) running->reads.emplace_back(buffer, bytes_.Read(buffer));
    if (!writes) return;
    const Value garbage = Mix({random_(), random_()});
    bytes_.Write(buffer, garbage);
    running->writes.emplace_back(buffer, garbage);
  }

  // The value read, or garbage if it changed during the instruction.
  Value Input(const Running& running, BufferKind kind, int bucket) {
    const int buffer = BufferOf(kind, bucket);
    for (const auto& [b, value] : running.reads) {
      if (b != buffer) continue;
      const bool writes = std::any_of(running.writes.begin(), running.writes.end(),
                                      [b = b](const auto& write) { return write.first == b; });
      return writes || bytes_.Read(b) == value ? value : Mix({random_()});
    }
    return 0;
  }

  void Output(const Running& running, BufferKind kind, int bucket, Value value) {
    const int buffer = BufferOf(kind, bucket);
    for (const auto& [b, garbage] : running.writes) {
      if (b == buffer) bytes_.Write(b, bytes_.Read(b) == garbage ? value : Mix({random_()}));
    }
  }

  Value Params(const Running& running, const Instruction& pass) {
    Value params = 0;
    for (const int b : BucketsOf(layout_, pass.unit)) {
      if (!Reads(layout_, pass.op, pass.unit, b)) continue;
      const Bucket& bucket = layout_.buckets[b];
      params = Mix({params, bucket.read_in_place() ? Gathered(bucket, main_[b])
                                                   : Input(running, BufferKind::kGathered, b)});
    }
    return params;
  }

  bool IsStaged(int bucket) const { return BufferOf(BufferKind::kState, bucket) >= 0; }

  // The main parameters, or garbage if the fetched state belongs to another step.
  Value Whole(const Running& running, int bucket) {
    const bool fits = !IsStaged(bucket) || Input(running, BufferKind::kState, bucket) == Home(running.main);
    return fits ? running.main : Mix({random_()});
  }

  // Location of a reduced gradient: with no_shard it stays in the buffer.
  Value Grad(const Running& running, int bucket) {
    return spec_.shards_optimizer() ? grad_[bucket] : Input(running, BufferKind::kReduce, bucket);
  }

  void End(int now, Running* running) {
    running->active = false;
    const Instruction& at = At(now);
    switch (at.op) {
      case Op::kGatherReplica:
        return Output(*running, BufferKind::kReplica, at.bucket, Mix({kReplicaTag, main_[at.bucket]}));
      case Op::kGather: {
        const Value source = layout_.buckets[at.bucket].pieces > 1
                                 ? Input(*running, BufferKind::kReplica, at.bucket)
                                 : main_[at.bucket];
        return Output(*running, BufferKind::kGathered, at.bucket, Mix({kGatherTag, source}));
      }
      case Op::kForward:
        return EndForward(at, *running);
      case Op::kBackward:
        return EndBackward(at, *running);
      case Op::kBackwardWeights:
        return AddToGrads(at, *running, DeferredPasses(hidden_grad_[{at.unit, at.micro_batch}]), true);
      case Op::kForwardBackward:
        EndForward(at, *running);
        return EndBackward(at, *running);
      case Op::kReduce:
        return EndReduce(at, *running);
      case Op::kReduceOuter:
        grad_[at.bucket] *= kOuterFactor;
        return Output(*running, BufferKind::kReduce, at.bucket,
                      kOuterFactor * Input(*running, BufferKind::kReduce, at.bucket));
      case Op::kNorm:
        return EndNorm(*running);
      case Op::kUpdate:
        main_[at.bucket] = Updated(Whole(*running, at.bucket), Grad(*running, at.bucket), norm_);
        return Output(*running, BufferKind::kState, at.bucket, Home(main_[at.bucket]));
      case Op::kSnapshot:
        if (copies_.empty()) return;
        copies_[(now / count_) * main_.size() + at.bucket] =
            main_[at.bucket] == running->main ? Whole(*running, at.bucket) : Mix({random_()});
        return;
      case Op::kFetch:
        return Output(*running, BufferKind::kState, at.bucket,
                      home_[at.bucket] == running->main ? running->main : Mix({random_()}));
      case Op::kOffload:
        home_[at.bucket] = Input(*running, BufferKind::kState, at.bucket);
        return;
      case Op::kOffloadActivations:
      case Op::kFetchActivations:
        return EndMovingActivations(at, *running);
      case Op::kLoss:
        results_.push_back(Mix({kNormTag, loss_}));
        loss_ = 0;
        return;
      case Op::kReceive:
        places_.At(at.op, at) = FromBefore(layout_, at.unit, at.micro_batch);
        return;
      case Op::kReceiveGrad:
        places_.At(at.op, at) = FromBehind(layout_, at.unit, at.micro_batch);
        return;
      case Op::kSend:
      case Op::kSendGrad:
        loss_ += std::exchange(places_.At(at.op, at), Mix({random_()}));
        return;
      case Op::kSendTiedGrad:
        loss_ += Grad(*running, at.bucket);
        return;
      case Op::kReceiveTiedGrad:
        return EndReceiveTwin(at, *running);
      case Op::kRelease:
      case Op::kDropActivations:
        return;
    }
  }

  void StartPass(const Instruction& at, Running* running) {
    if (at.op == Op::kForward) kept_[at.unit] = Mix({random_()});
    if (at.op == Op::kBackward) running->kept = kept_[at.unit];
    for (const int b : BucketsOf(layout_, at.unit)) {
      if (Reads(layout_, at.op, at.unit, b)) Touch(BufferKind::kGathered, b, true, false, running);
      if (at.op == Op::kForward || !layout_.buckets[b].trainable) continue;
      Touch(BufferKind::kReduce, b, at.accumulate || at.op == Op::kBackwardWeights, true, running);
    }
  }

  void EndReceiveTwin(const Instruction& at, const Running& running) {
    const Value sum = (at.accumulate ? Grad(running, at.bucket) : 0) + TiedReplicaOf(at.bucket);
    grad_[at.bucket] = sum;
    Output(running, BufferKind::kReduce, at.bucket, sum);
  }

  // Moves activations between device and host; a DropKept discards the device copy.
  void StartMovingActivations(const Instruction& at, Running* running) {
    const bool leaves = at.op == Op::kOffloadActivations;
    running->kept = (leaves ? kept_ : host_copy_)[at.unit];
    (leaves ? host_copy_ : kept_)[at.unit] = Mix({random_()});
  }

  void EndMovingActivations(const Instruction& at, const Running& running) {
    const bool leaves = at.op == Op::kOffloadActivations;
    const Value source = (leaves ? kept_ : host_copy_)[at.unit];
    (leaves ? host_copy_ : kept_)[at.unit] = source == running.kept ? source : Mix({random_()});
  }

  void EndNorm(const Running& running) {
    norm_ = Mix({kNormTag, loss_});
    for (size_t b = 0; b < layout_.buckets.size(); ++b) {
      if (layout_.buckets[b].trainable) norm_ = Mix({norm_, Grad(running, static_cast<int>(b))});
    }
    loss_ = 0;
    results_.push_back(norm_);
  }

  void EndForward(const Instruction& at, const Running& running) {
    const Value input = layout_.stage.ReceivesInput(at.unit)
                            // The slot is consumed.
                            ? std::exchange(places_.At(Op::kReceive, at), Mix({random_()}))
                            : hidden_[{at.unit - 1, at.micro_batch}];  // 0 for the model's first unit.
    const Value output = Hidden(at.unit, at.micro_batch, input, Params(running, at));
    hidden_[{at.unit, at.micro_batch}] = output;
    kept_[at.unit] = Kept(output);
    if (layout_.stage.SendsOutput(at.unit)) {
      places_.At(Op::kSend, at) = output;
    } else if (at.unit + 1 == Units()) {
      loss_ += output;
    }
  }

  // Saved activations as seen by backward: garbage if offloaded ones are not back yet, or were dropped in the
  // meantime.
  Value HiddenOf(const Instruction& at, const Running& running) {
    const Value hidden = hidden_[{at.unit, at.micro_batch}];
    if (!keeps_away_[at.unit]) return hidden;
    return running.kept == Kept(hidden) && kept_[at.unit] == running.kept ? hidden : Mix({random_()});
  }

  void EndBackward(const Instruction& at, const Running& running) {
    const Value output_grad = layout_.stage.SendsOutput(at.unit)
                                  ? std::exchange(places_.At(Op::kReceiveGrad, at), Mix({random_()}))
                                  : hidden_grad_[{at.unit + 1, at.micro_batch}];
    const Value hidden = HiddenOf(at, running);
    const Value grad = HiddenGrad(at.unit, output_grad, hidden, Params(running, at));
    hidden_grad_[{at.unit, at.micro_batch}] = grad;
    if (layout_.stage.ReceivesInput(at.unit)) places_.At(Op::kSendGrad, at) = grad;
    AddToGrads(at, running, grad, at.accumulate);
  }

  void AddToGrads(const Instruction& at, const Running& running, Value grad, bool adds) {
    for (const int b : BucketsOf(layout_, at.unit)) {
      const Value before = adds ? Input(running, BufferKind::kReduce, b) : 0;
      Output(running, BufferKind::kReduce, b, before + Part(b, grad));
    }
  }

  void EndReduce(const Instruction& at, const Running& running) {
    const Value reduced = kInnerFactor * Input(running, BufferKind::kReduce, at.bucket);
    grad_[at.bucket] = (at.accumulate ? grad_[at.bucket] : 0) + reduced;
    Output(running, BufferKind::kReduce, at.bucket, reduced);
    Output(running, BufferKind::kWire, at.bucket, Mix({random_()}));
  }

  const Program& program_;
  const Layout& layout_;
  const Spec& spec_;
  const int count_;
  std::mt19937 random_;
  Bytes bytes_;
  Places places_;
  std::vector<Value> main_;
  std::vector<Value> home_;  // By bucket, if its state is offloaded.
  std::vector<Value> grad_;
  Value norm_ = 0;
  Value loss_ = 0;
  std::map<std::pair<int, int>, Value> hidden_, hidden_grad_;  // Key: unit, micro-batch.
  std::vector<Value> kept_, host_copy_;                        // By unit.
  std::vector<bool> keeps_away_;                               // By unit: offloads its activations.
  std::vector<Value> results_;
  std::vector<Value> copies_;
  bool finished_ = true;
  std::vector<bool> done_;
  std::array<std::vector<int>, kBufferKinds> buffer_;  // By kind, then bucket.
  std::array<std::vector<int>, kLanes> lanes_;
  std::array<size_t, kLanes> next_{};
  std::array<int, kLanes> weight_{};
  std::array<Running, kLanes> running_;
};

// Reference: forward and, in training, backward of one micro-batch through a stage. Counts sent outputs as
// loss. Adds to the gradients and returns the loss.
Value MicroBatch(const Layout& layout, const std::vector<Value>& main, int micro_batch, bool trains,
                 std::vector<Value>* grad) {
  const auto units = static_cast<int>(layout.units.size());
  std::vector<Value> hidden(units, 0);
  const auto params = [&](int unit, Op pass) {
    Value read = 0;
    for (const int b : BucketsOf(layout, unit)) {
      if (Reads(layout, pass, unit, b)) read = Mix({read, Gathered(layout.buckets[b], main[b])});
    }
    return read;
  };
  Value counted = 0;
  for (int u = 0; u < units; ++u) {
    const bool enters = u == 0 || layout.stage.ReceivesInput(u);
    hidden[u] = Hidden(u, micro_batch, enters ? FromBefore(layout, u, micro_batch) : hidden[u - 1],
                       params(u, Op::kForward));
    if (layout.stage.SendsOutput(u) || u + 1 == units) counted += hidden[u];
  }
  Value output_grad = 0;
  for (int u = units - 1; trains && u >= 0; --u) {
    if (layout.stage.SendsOutput(u)) output_grad = FromBehind(layout, u, micro_batch);
    const bool fused = layout.stage.last() && u + 1 == units;
    output_grad =
        HiddenGrad(u, output_grad, hidden[u], params(u, fused ? Op::kForwardBackward : Op::kBackward));
    const bool defers_grads = layout.stage.defers_grads && !fused;
    for (const int b : BucketsOf(layout, u)) {
      (*grad)[b] += kInnerFactor * Part(b, output_grad);
      if (defers_grads) (*grad)[b] += kInnerFactor * Part(b, DeferredPasses(output_grad));
    }
    if (layout.stage.ReceivesInput(u)) counted += output_grad;
  }
  return counted;
}

}  // namespace

Outcome Rehearse(const Program& program, const Layout& layout, const Spec& spec, int steps, uint32_t seed) {
  return Run(program, layout, spec, steps, seed).Finish();
}

Outcome RunReference(const Layout& layout, const Spec& spec, ProgramKind kind, int steps) {
  const bool trains = kind == ProgramKind::kTraining;
  Outcome outcome;
  outcome.main = InitialMain(layout);
  for (int step = 0; step < steps; ++step) {
    std::vector<Value> grad(layout.buckets.size(), 0);
    Value loss = 0;
    const int64_t micro_batches = trains ? spec.micro_batches_per_step() : 1;
    for (int m = 0; m < micro_batches; ++m) loss += MicroBatch(layout, outcome.main, m, trains, &grad);
    for (size_t b = 0; trains && b < layout.buckets.size(); ++b) {
      if (!layout.buckets[b].trainable) continue;
      if (spec.mesh.size(Axis::kReplicate) > 1) grad[b] *= kOuterFactor;
      // The lender adds and sends the sum; the borrower sends and receives the sum.
      const TiedReplica tied_replica = layout.buckets[b].tied_replica;
      if (tied_replica == TiedReplica::kOriginal) grad[b] += TiedReplicaOf(static_cast<int>(b));
      if (tied_replica != TiedReplica::kNone) loss += grad[b];
      if (tied_replica == TiedReplica::kCopy) grad[b] = TiedReplicaOf(static_cast<int>(b));
    }
    Value norm = Mix({kNormTag, loss});
    for (size_t b = 0; trains && b < layout.buckets.size(); ++b) {
      if (layout.buckets[b].trainable) norm = Mix({norm, grad[b]});
    }
    outcome.steps.push_back(norm);
    for (size_t b = 0; trains && b < layout.buckets.size(); ++b) {
      const Bucket& bucket = layout.buckets[b];
      if (bucket.is_updated())
        outcome.main[b] = Updated(outcome.main[b], bucket.trainable ? grad[b] : 0, norm);
    }
    if (!trains || !spec.checkpoint.saves()) continue;
    outcome.copies.insert(outcome.copies.end(), outcome.main.begin(), outcome.main.end());
  }
  return outcome;
}

}  // namespace fsdpd

#include <algorithm>

#include "base/check.h"
#include "fsdp/plan/verify/verify_checks.h"

namespace fsdpd {
namespace {

// Contribution of one instruction to a bucket's gradient.
struct Part {
  int micro_batch = 0;
  int unit = 0;
  Op op = Op::kBackward;

  bool operator==(const Part& other) const {
    return micro_batch == other.micro_batch && unit == other.unit && op == other.op;
  }
};

// Symbolic state of one bucket. -1: absent.
struct BucketState {
  int main = 0;  // Number of updates.
  int replica = -1;
  int gathered = -1;
  int gathers = 0;
  std::vector<Part> summed;    // Contributions in the reduce buffer.
  std::vector<Part> reduced;   // Contributions reduced over the shard group.
  bool outer = false;          // Also reduced over replicas.
  bool tied_sent = false;      // Sent to the other stage with a replica,
  bool tied_received = false;  // and the gradient received from it is added.
  bool updated = false;
  bool copied = false;     // Snapshot taken.
  bool fetched = false;    // Offloaded state fetched,
  bool offloaded = false;  // and written back.

  void BeginStep() {
    const int kept = main;
    *this = BucketState();
    main = kept;
  }
};

// Stage transfers of a micro-batch.
struct Transferred {
  bool hidden_in = false;
  bool hidden_out = false;
  bool grad_in = false;
  bool grad_out = false;
};

// State of one run of the stage.
struct RunState {
  explicit RunState(int micro_batches)
      : passed(micro_batches, 0), weights_done(micro_batches, 0), transferred(micro_batches) {}

  std::vector<int> passed;               // By micro-batch: number of passes executed.
  std::vector<int> weights_done;         // By micro-batch: units whose deferred gradients are done.
  std::vector<Transferred> transferred;  // By micro-batch.
  int begun = 0;                         // Number of micro-batches, like the next two.
  int done = 0;
  int whole = 0;  // Number of micro-batches with no deferred gradients left.
};

// Location of an offloaded layer's saved activations.
enum class SavedIn { kNowhere, kDevice, kBoth, kHost, kBack };

class Flow {
 public:
  Flow(const VerifyCase& verified, const HappensBefore& order)
      : case_(verified),
        order_(order),
        buckets_(verified.buckets()),
        kept_(verified.units()),
        recompute_(verified.units()) {
    for (int b = 0; b < case_.buckets(); ++b) users_.push_back(case_.UsersOf(b));
  }

  absl::Status Run() {
    for (step_ = 0; step_ < 2; ++step_) {
      for (BucketState& state : buckets_) state.BeginStep();
      runs_.assign(case_.runs(), RunState(case_.micro_batches()));
      ended_ = false;
      for (int i = 0; i < case_.count(); ++i) FSDPD_RETURN_IF_ERROR(Apply(i));
      FSDPD_RETURN_IF_ERROR(EndStep());
    }
    return absl::OkStatus();
  }

 private:
  template <typename... Parts>
  absl::Status Error(int rule, int i, const Parts&... what) const {
    return RuleError(rule, case_.Name(i), what...);
  }

  absl::Status Apply(int i) {
    switch (case_.At(i).op) {
      case Op::kGatherReplica:
        return Publish(i);
      case Op::kGather:
        return Gather(i);
      case Op::kForward:
        return Forward(i);
      case Op::kRelease:
        return Release(i);
      case Op::kBackward:
        return Backward(i);
      case Op::kBackwardWeights:
        return BackwardWeights(i);
      case Op::kForwardBackward:
        return ForwardBackward(i);
      case Op::kReduce:
        return Reduce(i);
      case Op::kReduceOuter:
        return ReduceOuter(i);
      case Op::kNorm:
        return Norm(i);
      case Op::kUpdate:
        return Update(i);
      case Op::kSnapshot:
        return Snapshot(i);
      case Op::kFetch:
        return Fetch(i);
      case Op::kOffload:
        return Offload(i);
      case Op::kOffloadActivations:
        return MoveActivations(i, SavedIn::kDevice, SavedIn::kBoth);
      case Op::kDropActivations:
        return MoveActivations(i, SavedIn::kBoth, SavedIn::kHost);
      case Op::kFetchActivations:
        return FetchKept(i);
      case Op::kLoss:
        return Loss(i);
      case Op::kSend:
        return Send(i, case_.SendsOutput(RunOf(i)), TransferredOf(i).hidden_out, ForwardPasses(RunOf(i)));
      case Op::kSendGrad:
        return Send(i, case_.ReceivesInput(RunOf(i)), TransferredOf(i).grad_out, Passes(RunOf(i)));
      case Op::kReceive:
        return Receive(i, case_.ReceivesInput(RunOf(i)), TransferredOf(i).hidden_in);
      case Op::kReceiveGrad:
        return Receive(i, case_.SendsOutput(RunOf(i)), TransferredOf(i).grad_in);
      case Op::kSendTiedGrad:
      case Op::kReceiveTiedGrad:
        return CrossTwin(i);
    }
    return absl::OkStatus();
  }

  bool Trainable(int bucket) const { return case_.layout.buckets[bucket].trainable; }
  bool Changes(int bucket) const {
    return Trainable(bucket) || case_.layout.buckets[bucket].choices_begin >= 0;
  }
  // The parameter version of this step.
  int Current(int bucket) const { return case_.training() && Changes(bucket) ? step_ : 0; }
  BucketState& StateOf(int i) { return buckets_[case_.At(i).bucket]; }

  absl::Status Publish(int i) {
    BucketState& state = StateOf(i);
    if (!case_.publishes()) return Error(4, i, " has no replica axis to gather over");
    if (state.replica >= 0) return Error(4, i, " is a duplicate");
    if (state.main != Current(case_.At(i).bucket)) return ReadsUpdated(i);
    state.replica = state.main;
    return absl::OkStatus();
  }

  absl::Status ReadsUpdated(int i) const { return Error(6, i, " reads main parameters after their Update"); }

  absl::Status Gather(int i) {
    BucketState& state = StateOf(i);
    const int source = case_.publishes() ? state.replica : state.main;
    if (source < 0) return Error(2, i, " precedes its Publish");
    if (source != Current(case_.At(i).bucket)) return ReadsUpdated(i);
    if (state.gathered >= 0) return Error(4, i, " gathers a bucket that is already gathered");
    if (++state.gathers > 1 && case_.training() && case_.spec.keeps_gathered())
      return Error(4, i, " gathers again a bucket that stays for the step");
    state.gathered = source;
    return absl::OkStatus();
  }

  int RunOf(int i) const { return case_.RunOf(case_.At(i).unit); }
  Transferred& TransferredOf(int i) { return runs_[RunOf(i)].transferred[case_.At(i).micro_batch]; }
  int Units(int run) const { return case_.RunEnd(run) - case_.RunBegin(run); }

  // Passes of one micro-batch through a run: each unit forward and, in training, backward; the model's last
  // unit in one pass.
  int Passes(int run) const { return case_.training() ? Units(run) + ForwardPasses(run) : Units(run); }
  bool Fuses(int unit) const {
    const StagePlace& stage = case_.layout.stage;
    return case_.training() && stage.number + 1 == stage.count && unit == case_.units() - 1;
  }
  int ForwardPasses(int run) const { return Units(run) - (Fuses(case_.RunEnd(run) - 1) ? 1 : 0); }

  Op GivesGradient(int unit) const { return Fuses(unit) ? Op::kForwardBackward : Op::kBackward; }
  // All contributions of a micro-batch to the gradients that the unit uses.
  std::vector<Part> PartsOf(int unit, int m) const {
    std::vector<Part> parts = {{m, unit, GivesGradient(unit)}};
    if (case_.defers_grads() && !Fuses(unit)) parts.push_back({m, unit, Op::kBackwardWeights});
    return parts;
  }
  // Units of a run that defer weight gradients.
  int Deferring(int run) const { return case_.defers_grads() ? ForwardPasses(run) : 0; }

  // Maximum number of micro-batches in flight in a run, which bounds saved activations: as many as can enter
  // before the first one has reached the last stage's last run and come back.
  int MostInFlight() const {
    if (!case_.training()) return 1;
    const int stages = case_.layout.stage.count, behind = stages - 1 - case_.layout.stage.number;
    return case_.runs() == 1 ? behind + 1 : 2 * behind + (case_.runs() - 1) * stages + 1;
  }
  int InFlight() const {
    int now = 0;
    for (const RunState& state : runs_) now += state.begun - state.done;
    return now;
  }

  int UnitAt(int run, int place) const {
    const int forward = ForwardPasses(run);
    return place < forward ? case_.RunBegin(run) + place : case_.RunEnd(run) - 1 - (place - forward);
  }
  Op OpAt(int run, int place) const {
    return place < ForwardPasses(run) ? Op::kForward : GivesGradient(UnitAt(run, place));
  }

  // Checks the order within a run: micro-batches enter in order, each visits units in order, and they go back
  // in order. Completion of earlier runs is implied by received inputs.
  bool MayGoOn(int run, int m) const {
    const RunState& state = runs_[run];
    if (state.passed[m] == Passes(run)) return false;
    if (state.passed[m] == 0) return m == state.begun && InFlight() < MostInFlight();
    return state.passed[m] != ForwardPasses(run) || !case_.training() || m == state.done;
  }

  // Rule 4: each micro-batch runs forward and backward through the chain; with one stage, one after the
  // other. All passes are on one lane, so list order is execution order.
  absl::Status Advance(int i) {
    const Instruction& at = case_.At(i);
    const int m = at.micro_batch, unit = at.unit, run = RunOf(i);
    RunState& state = runs_[run];
    if (state.done == case_.micro_batches()) return Error(4, i, " follows the last scheduled pass");
    const int place = state.passed[m];
    if (!MayGoOn(run, m) || at.op != OpAt(run, place) || unit != UnitAt(run, place)) {
      const int due = state.begun > state.done ? state.done : state.begun, next = state.passed[due];
      const std::string name = NameOf(case_, OpAt(run, next), UnitAt(run, next), due);
      return Error(4, i, " runs where ", name, " is expected");
    }
    FSDPD_RETURN_IF_ERROR(CheckReceived(i, place));
    FSDPD_RETURN_IF_ERROR(CheckPutOff(i, place));
    state.begun += place == 0 ? 1 : 0;
    state.done += ++state.passed[m] == Passes(run) ? 1 : 0;
    for (const int b : case_.BucketsOf(unit)) {
      if (buckets_[b].gathered >= 0 || !case_.ReadsParams(at, b)) continue;
      const bool own = case_.layout.buckets[b].unit == unit;
      return RuleError(own ? 2 : 4, case_.Name(i), " runs without the parameters of ", case_.BucketName(b));
    }
    return absl::OkStatus();
  }

  bool ChainDone() const {
    for (int run = 0; run < case_.runs(); ++run) {
      if (runs_[run].done < case_.micro_batches()) return false;
      if (Deferring(run) > 0 && runs_[run].whole < case_.micro_batches()) return false;
    }
    return true;
  }

  // Rule 4: a backward is marked if it defers weight gradients, and starts with at most as many micro-batches
  // deferred as there are earlier stages, because each holds memory.
  absl::Status CheckPutOff(int i, int place) const {
    const Instruction& at = case_.At(i);
    const RunState& state = runs_[RunOf(i)];
    if (at.defers_grads != (case_.defers_grads() && at.op == Op::kBackward))
      return Error(4, i, at.defers_grads ? " defers" : " does not defer", " weight gradients");
    if (Deferring(RunOf(i)) == 0 || place != ForwardPasses(RunOf(i)) ||
        state.done - state.whole <= case_.layout.stage.number)
      return absl::OkStatus();
    return Error(4, i, " begins with ", state.done - state.whole, " micro-batches deferred");
  }

  // Rule 4: deferred weight gradients follow the micro-batch's backward, in the same order of units.
  absl::Status BackwardWeights(int i) {
    const Instruction& at = case_.At(i);
    const int run = RunOf(i);
    RunState& state = runs_[run];
    const int due = case_.RunBegin(run) + Deferring(run) - 1 - state.weights_done[at.micro_batch];
    if (at.micro_batch != state.whole || at.micro_batch >= state.done || at.unit != due)
      return Error(4, i, " has no deferred weight gradients");
    state.whole += ++state.weights_done[at.micro_batch] == Deferring(run) ? 1 : 0;
    return AddToGradients(i);
  }

  // Rule 10: the input of a pass was received, and outputs are sent only after they were produced.
  absl::Status CheckReceived(int i, int place) const {
    const int run = RunOf(i);
    const Transferred& transferred = runs_[run].transferred[case_.At(i).micro_batch];
    if (place == 0 && case_.ReceivesInput(run) && !transferred.hidden_in)
      return Error(10, i, " precedes its Receive");
    if (place == ForwardPasses(run) && case_.SendsOutput(run) && !transferred.grad_in)
      return Error(10, i, " precedes its ReceiveGrad");
    return absl::OkStatus();
  }

  absl::Status Send(int i, bool goes, bool& done, int passes) {
    const Instruction& at = case_.At(i);
    const int run = RunOf(i);
    if (!goes) return Error(10, i, " has no stage to send to");
    if (done) return Error(10, i, " is a duplicate");
    if (runs_[run].passed[at.micro_batch] < passes) return Error(10, i, " precedes the output that it sends");
    if (at.unit != (at.op == Op::kSend ? case_.RunEnd(run) - 1 : case_.RunBegin(run)))
      return Error(10, i, " is for a unit inside the stage");
    done = true;
    return absl::OkStatus();
  }

  absl::Status Receive(int i, bool comes, bool& done) {
    const Instruction& at = case_.At(i);
    const int run = RunOf(i);
    if (!comes) return Error(10, i, " has no stage to receive from");
    if (done) return Error(10, i, " is a duplicate");
    if (at.unit != (at.op == Op::kReceive ? case_.RunBegin(run) : case_.RunEnd(run) - 1))
      return Error(10, i, " is for a unit inside the stage");
    done = true;
    return absl::OkStatus();
  }

  // At the end of a step, no transfer is in flight.
  absl::Status CheckSent(int i) const {
    for (int run = 0; run < case_.runs(); ++run) {
      for (int m = 0; m < case_.micro_batches(); ++m) {
        const Transferred& transferred = runs_[run].transferred[m];
        if (case_.SendsOutput(run) && !transferred.hidden_out)
          return Error(10, i, " lacks ", NameOf(case_, Op::kSend, case_.RunEnd(run) - 1, m));
        if (case_.training() && case_.ReceivesInput(run) && !transferred.grad_out)
          return Error(10, i, " lacks ", NameOf(case_, Op::kSendGrad, case_.RunBegin(run), m));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Forward(int i) {
    FSDPD_RETURN_IF_ERROR(Advance(i));
    if (case_.OffloadsActivationsOf(case_.At(i).unit))
      FSDPD_RETURN_IF_ERROR(MoveActivations(i, SavedIn::kNowhere, SavedIn::kDevice));
    recompute_[case_.At(i).unit] = case_.At(i).recompute;
    if (case_.At(i).recompute <= case_.spec.recompute) return absl::OkStatus();
    return Error(4, i, " saves less than the spec's recompute requires");
  }

  absl::Status Release(int i) {
    for (const int b : case_.layout.units[case_.At(i).unit].buckets) {
      if (buckets_[b].gathered < 0) return Error(2, i, " releases a bucket that is not gathered");
      buckets_[b].gathered = -1;
    }
    return absl::OkStatus();
  }

  absl::Status Backward(int i) {
    FSDPD_RETURN_IF_ERROR(Advance(i));
    const Instruction& at = case_.At(i);
    if (at.recompute != recompute_[at.unit])
      return Error(4, i, " does not match the recompute of its Forward");
    if (case_.OffloadsActivationsOf(at.unit))
      FSDPD_RETURN_IF_ERROR(MoveActivations(i, SavedIn::kBack, SavedIn::kNowhere));
    return AddToGradients(i);
  }

  absl::Status ForwardBackward(int i) {
    FSDPD_RETURN_IF_ERROR(Advance(i));
    if (case_.At(i).recompute != Recompute::kNone) return Error(4, i, " recomputes its own forward");
    return AddToGradients(i);
  }

  absl::Status AddToGradients(int i) {
    const Instruction& at = case_.At(i);
    for (const int b : case_.BucketsOf(at.unit)) {
      if (!Trainable(b)) continue;
      BucketState& state = buckets_[b];
      // Weight gradients of other parameters than Backward's.
      const bool deferred = at.op == Op::kBackwardWeights;
      const auto alike = [deferred](const Part& part) {
        return (part.op == Op::kBackwardWeights) == deferred;
      };
      if (at.accumulate != std::any_of(state.summed.begin(), state.summed.end(), alike))
        return WrongAccumulate(i, case_.BucketName(b));
      state.summed.push_back({at.micro_batch, at.unit, at.op});
    }
    return absl::OkStatus();
  }

  absl::Status WrongAccumulate(int i, const std::string& bucket) const {
    return Error(
        5, i, case_.At(i).accumulate ? " adds to an unset gradient of " : " overwrites instead of adding to ",
        bucket);
  }

  // Rule 5: the sum has every required contribution exactly once, and no other.
  absl::Status Reduce(int i) {
    const Instruction& at = case_.At(i);
    BucketState& state = StateOf(i);
    if (!Trainable(at.bucket)) return Error(5, i, " reduces a frozen bucket");
    if (case_.full_grads() && at.micro_batch != case_.micro_batches() - 1)
      return Error(5, i, " precedes the last micro-batch");
    size_t due = 0;
    for (int m = case_.full_grads() ? 0 : at.micro_batch; m <= at.micro_batch; ++m) {
      for (const int unit : users_[at.bucket]) {
        for (const Part& part : PartsOf(unit, m)) {
          ++due;
          if (std::count(state.summed.begin(), state.summed.end(), part) == 1) continue;
          return Error(5, i, " lacks ", NameOf(case_, part.op, unit, m));
        }
      }
    }
    if (state.summed.size() != due) return Error(5, i, " includes other micro-batches");
    if (at.accumulate != !state.reduced.empty()) return WrongAccumulate(i, case_.BucketName(at.bucket));
    state.reduced.insert(state.reduced.end(), state.summed.begin(), state.summed.end());
    state.summed.clear();
    return absl::OkStatus();
  }

  absl::Status CheckReduced(int i, int bucket) const {
    const BucketState& state = buckets_[bucket];
    for (int m = 0; m < case_.micro_batches(); ++m) {
      for (const int unit : users_[bucket]) {
        const std::vector<Part> parts = PartsOf(unit, m);
        if (std::all_of(parts.begin(), parts.end(), [&state](const Part& part) {
              return std::count(state.reduced.begin(), state.reduced.end(), part) == 1;
            }))
          continue;
        const int at = case_.full_grads() ? case_.micro_batches() - 1 : m;
        return Error(5, i, " lacks ", NameOf(case_, Op::kReduce, case_.layout.buckets[bucket].unit, at));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReduceOuter(int i) {
    BucketState& state = StateOf(i);
    if (!case_.has_replicas() || !Trainable(case_.At(i).bucket)) return Error(5, i, " has nothing to reduce");
    FSDPD_RETURN_IF_ERROR(CheckReduced(i, case_.At(i).bucket));
    if (state.outer) return Error(5, i, " is a duplicate");
    state.outer = true;
    return absl::OkStatus();
  }

  // Rule 5: the lender's stage adds the received gradient and sends the sum; the borrower's stage sends its
  // own and receives the sum.
  absl::Status CrossTwin(int i) {
    BucketState& state = StateOf(i);
    const TiedReplica tied_replica = case_.layout.buckets[case_.At(i).bucket].tied_replica;
    const bool sends = case_.At(i).op == Op::kSendTiedGrad, lends = tied_replica == TiedReplica::kOriginal;
    if (tied_replica == TiedReplica::kNone || !Trainable(case_.At(i).bucket))
      return Error(5, i, " is for a bucket that no other stage trains");
    FSDPD_RETURN_IF_ERROR(CheckReduced(i, case_.At(i).bucket));
    if (case_.has_replicas() && !state.outer) return Error(5, i, " precedes its ReduceOuter");
    if (sends ? state.tied_sent : state.tied_received) return Error(5, i, " is a duplicate");
    // The second operation of each.
    if (sends == lends && !(sends ? state.tied_received : state.tied_sent))
      return Error(5, i, " precedes its counterpart");
    if (!sends && case_.At(i).accumulate != lends)
      return WrongAccumulate(i, case_.BucketName(case_.At(i).bucket));
    (sends ? state.tied_sent : state.tied_received) = true;
    return absl::OkStatus();
  }

  // Rule 6: Norm.
  absl::Status Norm(int i) {
    if (ended_) return Error(6, i, " is a duplicate");
    if (!ChainDone()) return Error(6, i, " precedes the last Backward");
    FSDPD_RETURN_IF_ERROR(CheckSent(i));
    for (int b = 0; b < case_.buckets(); ++b) {
      if (!Trainable(b)) continue;
      FSDPD_RETURN_IF_ERROR(CheckReduced(i, b));
      if (case_.layout.buckets[b].tied_replica != TiedReplica::kNone &&
          !(buckets_[b].tied_sent && buckets_[b].tied_received))
        return Error(5, i, " runs before the gradients of ", case_.BucketName(b),
                     " are summed over its stages");
      if (!case_.has_replicas() || buckets_[b].outer) continue;
      return Error(5, i, " lacks ", NameOf(case_, Op::kReduceOuter, case_.layout.buckets[b].unit, -1));
    }
    ended_ = true;
    return absl::OkStatus();
  }

  absl::Status Update(int i) {
    BucketState& state = StateOf(i);
    if (!Changes(case_.At(i).bucket)) return Error(6, i, " changes a frozen bucket");
    if (!ended_) return Error(6, i, " precedes Norm");
    if (state.updated) return Error(6, i, " is a duplicate");
    if (case_.OffloadsState(case_.At(i).bucket) && !state.fetched) return Error(11, i, " precedes its Fetch");
    state.updated = true;
    ++state.main;
    return absl::OkStatus();
  }

  // Rule 9. Rule 6 checks that the next Update does not overtake it.
  absl::Status Snapshot(int i) {
    BucketState& state = StateOf(i);
    if (!case_.spec.checkpoint.saves()) return Error(9, i, " is in a job without checkpoints");
    if (Changes(case_.At(i).bucket) && !state.updated) return Error(9, i, " precedes its Update");
    if (state.copied) return Error(9, i, " is a duplicate");
    state.copied = true;
    return absl::OkStatus();
  }

  // Rule 11.
  absl::Status Fetch(int i) {
    BucketState& state = StateOf(i);
    if (!case_.OffloadsState(case_.At(i).bucket)) return Error(11, i, " fetches state that is not offloaded");
    if (state.fetched) return Error(11, i, " is a duplicate");
    state.fetched = true;
    return absl::OkStatus();
  }

  absl::Status Offload(int i) {
    BucketState& state = StateOf(i);
    if (!case_.OffloadsState(case_.At(i).bucket))
      return Error(11, i, " writes back state that is not offloaded");
    if (!state.updated) return Error(11, i, " precedes its Update");
    if (state.offloaded) return Error(11, i, " is a duplicate");
    state.offloaded = true;
    return absl::OkStatus();
  }

  // Rule 12.
  absl::Status MoveActivations(int i, SavedIn from, SavedIn to) {
    const int unit = case_.At(i).unit;
    if (!case_.OffloadsActivationsOf(unit)) return Error(12, i, " is for a layer that is not offloaded");
    if (kept_[unit] != from) return Error(12, i, " runs while the layer's activations are elsewhere");
    kept_[unit] = to;
    const auto on_device = [](SavedIn in) { return in != SavedIn::kNowhere && in != SavedIn::kHost; };
    if (std::count_if(kept_.begin(), kept_.end(), on_device) <= static_cast<int>(kStagedLayers))
      return absl::OkStatus();
    return Error(12, i, " exceeds the layers in flight");
  }

  // It writes bytes that compute instructions listed earlier may still use.
  absl::Status FetchKept(int i) {
    FSDPD_RETURN_IF_ERROR(MoveActivations(i, SavedIn::kHost, SavedIn::kBack));
    int last = i;
    while (last >= 0 && case_.At(last).lane != LaneId::kCompute) --last;
    if (last < 0 || order_.Before(last, i)) return absl::OkStatus();
    return Error(12, i, " does not wait for ", case_.Name(last));
  }

  absl::Status Loss(int i) {
    if (!ChainDone()) return Error(8, i, " precedes the last Forward");
    FSDPD_RETURN_IF_ERROR(CheckSent(i));
    if (i != case_.count() - 1) return Error(8, i, " is not the last instruction");
    ended_ = true;
    return absl::OkStatus();
  }

  absl::Status EndStep() const {
    if (!ended_)
      return RuleError(case_.training() ? 6 : 8, case_.training() ? "Norm is missing" : "Loss is missing");
    for (int b = 0; b < case_.buckets(); ++b) {
      const int unit = case_.layout.buckets[b].unit;
      if (case_.training() && Changes(b) && !buckets_[b].updated)
        return RuleError(6, NameOf(case_, Op::kUpdate, unit, -1), " is missing");
      if (case_.training() && case_.spec.checkpoint.saves() && !buckets_[b].copied)
        return RuleError(9, NameOf(case_, Op::kSnapshot, unit, -1), " is missing");
      if (case_.training() && case_.OffloadsState(b) && !buckets_[b].offloaded)
        return RuleError(11, NameOf(case_, Op::kOffload, unit, -1), " is missing");
      if (case_.spec.shards_params() && buckets_[b].gathered >= 0)
        return RuleError(2, NameOf(case_, Op::kRelease, unit, -1), " is missing");
    }
    return absl::OkStatus();
  }

  const VerifyCase& case_;
  const HappensBefore& order_;
  std::vector<BucketState> buckets_;
  std::vector<SavedIn> kept_;            // By unit.
  std::vector<std::vector<int>> users_;  // By bucket.
  std::vector<Recompute> recompute_;     // By unit: recompute of its last Forward.
  int step_ = 0;
  std::vector<RunState> runs_;
  bool ended_ = false;  // Norm or Loss has run.
};

}  // namespace

absl::Status CheckFlow(const VerifyCase& verified, const HappensBefore& order) {
  return Flow(verified, order).Run();
}

}  // namespace fsdpd

#include "fsdp/plan/predict/estimate.h"

#include <algorithm>

#include "fsdp/plan/program/residencies.h"

namespace fsdpd {
namespace {

// A phase of the step in which lanes run concurrently: seconds of work per lane.
struct Part {
  double compute = 0;
  double gather = 0;
  double reduce = 0;
  double outer = 0;
  double staged = 0;  // Copies to or from host memory, which slow nothing else down.
};

class Estimate {
 public:
  Estimate(const Spec& spec, const Layout& layout, StepSeconds seconds, const DeviceProfile& profile)
      : spec_(spec),
        layout_(layout),
        seconds_(std::move(seconds)),
        profile_(profile),
        units_(static_cast<int>(layout.units.size())),
        micro_batches_(spec.micro_batches_per_step()) {
    SortGathers();
  }

  // All micro-batches except the first and the last take the same time.
  double Run() const {
    double seconds = Seconds(Forward(/*first=*/true)) + Tail();
    if (micro_batches_ > 1) {
      seconds += Seconds(BackwardBetween(/*first=*/true));
      seconds += static_cast<double>(micro_batches_ - 1) * Seconds(Forward(/*first=*/false));
      seconds += static_cast<double>(micro_batches_ - 2) * Seconds(BackwardBetween(/*first=*/false));
    }
    return seconds + Seconds(LastBackward(/*first=*/micro_batches_ == 1));
  }

  // Time of one micro-batch, forward and backward, as other stages wait for it. Excludes deferred weight
  // gradients, which instead fill the same amount of waiting.
  double MicroBatch() const {
    const bool first = micro_batches_ == 1;
    double deferred = 0;
    for (const UnitSeconds& unit : seconds_.units) deferred += spec_.zero_bubble ? unit.deferred : 0;
    return std::max(0.0, Seconds(Forward(first)) + Seconds(BackwardBetween(first)) - 2 * deferred);
  }

 private:
  // Time until two lanes that start together are both done. Each is slower while the other runs.
  double Beside(double compute, double communication) const {
    const double hidden = communication * profile_.communication_slowdown;
    const double exposed = compute * profile_.compute_slowdown;
    if (hidden <= exposed) return compute + hidden * (1 - 1 / profile_.compute_slowdown);
    return exposed + communication - exposed / profile_.communication_slowdown;
  }

  double Seconds(const Part& part) const {
    return std::max(part.staged, Beside(part.compute, std::max({part.gather, part.reduce, part.outer})));
  }

  // Assigns gathers to the phase that first needs them, for the first two micro-batches; all later ones are
  // like the second.
  void SortGathers() {
    const int passes = 2 * units_ - 1;  // Passes per micro-batch; the last unit's two are fused.
    const auto shown = static_cast<int>(std::min<int64_t>(micro_batches_, 2));
    for (const Residency& stay :
         ListResidencies(layout_, TrainingSchedule(units_, shown), spec_.keeps_gathered())) {
      const bool backward = stay.first_pass % passes >= units_ - 1;
      (backward ? gathers_back_ : gathers_)[stay.first_pass / passes] += seconds_.units[stay.unit].gather;
    }
  }

  Part Forward(bool first) const {
    Part part;
    for (int u = 0; u + 1 < units_; ++u) part.compute += seconds_.units[u].forward;
    for (const UnitSeconds& unit : seconds_.units) part.staged += unit.activation_copy;
    part.gather = gathers_[first ? 0 : 1];
    if (!first) {
      if (spec_.shards_grads()) part.reduce = LastReduce(/*first=*/false);  // From the previous micro-batch.
      return part;
    }
    part.gather -= std::min(part.gather, FirstGather());  // Counted with the updates, in Tail().
    for (const UnitSeconds& unit : seconds_.units) {
      part.compute += unit.cast;
      part.outer += unit.gather_replica;
    }
    return part;
  }

  // Backward of a micro-batch that is followed by another one. Its last reduction overlaps the next forward.
  Part BackwardBetween(bool first) const {
    Part part;
    part.compute = seconds_.units.back().forward;
    part.gather = gathers_back_[first ? 0 : 1];
    for (const UnitSeconds& unit : seconds_.units) {
      part.compute += unit.backward;
      part.staged += unit.activation_copy;
    }
    if (spec_.shards_grads()) part.reduce = ReducesBesideBackward(first);
    return part;
  }

  // Backward of the last micro-batch, whose last reductions are in Tail(). Unsharded gradients are reduced
  // only here.
  Part LastBackward(bool first) const {
    Part part = BackwardBetween(first);
    part.reduce = ReducesBesideBackward(first);
    for (int u = 1; u < units_; ++u) part.outer += seconds_.units[u].reduce_outer;
    return part;
  }

  // All except the first unit's, which no backward is left to overlap.
  double ReducesBesideBackward(bool first) const {
    double seconds = 0;
    for (int u = 1; u < units_; ++u) seconds += ReduceOf(seconds_.units[u], first);
    return seconds;
  }

  double ReduceOf(const UnitSeconds& unit, bool first) const {
    return first || !spec_.shards_grads() ? unit.first_reduce : unit.accumulating_reduce;
  }
  double LastReduce(bool first) const { return ReduceOf(seconds_.units.front(), first); }
  double FirstGather() const { return seconds_.units.front().gather; }

  // After the last backward: its reduction, Norm, and the updates. Later updates overlap the gather of the
  // next step's first unit.
  double Tail() const {
    const UnitSeconds& unit = seconds_.units.front();
    double updates = 0, fetches = 0;
    for (const UnitSeconds& each : seconds_.units) {
      updates += each.update;
      fetches += each.fetch;
    }
    const double next = unit.gather_replica + FirstGather();
    const double norm = LastReduce(micro_batches_ == 1) + unit.reduce_outer + seconds_.norm;
    if (fetches > 0) return norm + Staged() + next;
    return norm + unit.update + Beside(updates - unit.update, next);
  }

  // Stall of the next step's first forward on updates with offloaded state: per unit, the updates up to it
  // minus the compute done until then.
  double Staged() const {
    double brought = 0, computed = 0, waits = 0;
    for (const UnitSeconds& unit : seconds_.units) {
      brought += unit.fetch;
      waits = std::max(waits, brought + unit.update - computed);
      computed += unit.forward;
    }
    return waits;
  }

  const Spec& spec_;
  const Layout& layout_;
  const StepSeconds seconds_;
  const DeviceProfile& profile_;
  const int units_;
  const int64_t micro_batches_;
  double gathers_[2] = {0, 0};       // Forward: first micro-batch, and each later one.
  double gathers_back_[2] = {0, 0};  // Backward: likewise.
};

}  // namespace

double EstimateStepSeconds(const Spec& spec, const std::vector<ModelFacts>& stages,
                           const std::vector<Layout>& layouts, const DeviceProfile& profile,
                           Placement placement) {
  double step = 0, micro_batch = 0, stage_transfer = 0;
  for (size_t s = 0; s < stages.size(); ++s) {
    const StepSeconds seconds = SecondsWithoutProgram(spec, stages[s], layouts[s], profile, placement);
    const Estimate estimate(spec, layouts[s], seconds, profile);
    step = std::max(step, estimate.Run());
    micro_batch = std::max(micro_batch, estimate.MicroBatch());
    stage_transfer = seconds.stage_transfer;
  }
  if (stages.size() == 1) return step;
  const auto others = static_cast<double>(stages.size()) - 1;
  const auto chunks = static_cast<double>(stages[0].stage.runs.size());
  const auto micro_batches = static_cast<double>(spec.micro_batches_per_step());
  // A stage keeps just enough micro-batches in flight for the last stage to start, so each of them waits for
  // the transfers in both directions.
  const double round = 2 * stage_transfer * others / (others + 1);
  return step + others / chunks * micro_batch + 2 * others * stage_transfer + micro_batches * chunks * round;
}

}  // namespace fsdpd

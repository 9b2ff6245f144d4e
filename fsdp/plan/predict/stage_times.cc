#include "fsdp/plan/predict/stage_times.h"

#include <algorithm>
#include <limits>
#include <map>
#include <tuple>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// An instruction of one stage in one step.
struct Place {
  int stage = 0;
  int step = 0;
  int instruction = 0;
};

class Stages {
 public:
  Stages(const std::vector<TimedStage>& stages, int steps)
      : stages_(stages), steps_(steps), times_(stages.size()), lanes_(stages.size()) {
    for (size_t s = 0; s < stages.size(); ++s) {
      const std::vector<Instruction>& all = stages[s].program->instructions;
      FSDPD_CHECK(stages[s].seconds.size() == all.size());
      times_[s].steps.assign(steps, std::vector<Interval>(all.size(), {kNever, kNever}));
      for (size_t i = 0; i < all.size(); ++i) {
        const auto number = static_cast<int>(i);
        lanes_[s][static_cast<size_t>(all[i].lane)].queue.push_back(number);
        if (StageTransferOf(all[i].op) == StageTransfer::kNone || all[i].micro_batch < 0) continue;
        stage_transfers_[{all[i].op, stages[s].stage.ModelRunIndex(all[i].unit), all[i].micro_batch}] = {
            static_cast<int>(s), 0, number};
      }
    }
  }

  std::vector<LaneTimes> Run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
        for (Lane& lane : lanes_[s]) {
          while (!lane.Ended(steps_) && Advance({s, lane.step, lane.queue[lane.next]})) moved = true;
        }
      }
    }
    for (const auto& lanes : lanes_) {
      for (const Lane& lane : lanes) FSDPD_CHECK(lane.Ended(steps_));
    }
    for (size_t s = 0; s < stages_.size(); ++s) Cut(static_cast<int>(s));
    return std::move(times_);
  }

 private:
  struct Lane {
    std::vector<int> queue;
    int step = 0;
    size_t next = 0;
    double free = 0;

    bool Ended(int steps) const { return queue.empty() || step == steps; }
    bool IsAt(const Place& at) const { return step == at.step && queue[next] == at.instruction; }
    void Pass(double end) {
      free = end;
      if (++next < queue.size()) return;
      next = 0;
      ++step;
    }
  };

  const Instruction& At(const Place& at) const {
    return stages_[at.stage].program->instructions[at.instruction];
  }
  Lane& LaneOf(const Place& at) { return lanes_[at.stage][static_cast<size_t>(At(at).lane)]; }

  // Counterparts of an instruction in the participating stages: for a stage transfer, the instruction of the
  // peer run; for a tied-embedding replica, that of the other stage; for a collective, the k-th of its kind
  // in each stage.
  std::vector<Place> Meets(const Place& at) const {
    const Instruction& own = At(at);
    if (StageTransferOf(own.op) != StageTransfer::kNone && own.micro_batch < 0) {
      const int other = at.stage == 0 ? static_cast<int>(stages_.size()) - 1 : 0;
      return {at, {other, at.step, Nth(other, CounterpartOf(own.op), NumberOf(at))}};
    }
    if (StageTransferOf(own.op) != StageTransfer::kNone) {
      const int run = stages_[at.stage].stage.ModelRunIndex(own.unit) + TransferDirection(own.op);
      const auto other = stage_transfers_.find({CounterpartOf(own.op), run, own.micro_batch});
      FSDPD_CHECK(other != stage_transfers_.end());
      return {at, other->second};
    }
    std::vector<Place> all = {at};
    if (own.group != Group::kWorld) return all;
    for (int s = 0; s < static_cast<int>(stages_.size()); ++s) {
      if (s != at.stage) all.push_back({s, at.step, Nth(s, own.op, NumberOf(at))});
    }
    return all;
  }

  int64_t NumberOf(const Place& at) const {
    const std::vector<Instruction>& list = stages_[at.stage].program->instructions;
    return std::count_if(list.begin(), list.begin() + at.instruction,
                         [op = At(at).op](const Instruction& i) { return i.op == op; });
  }
  int Nth(int stage, Op op, int64_t number) const {
    const std::vector<Instruction>& all = stages_[stage].program->instructions;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].op == op && number-- == 0) return static_cast<int>(i);
    }
    FSDPD_CHECK(false);
    return 0;
  }

  // Infinity while a dependency has no time yet.
  double ReadyAt(const Place& at) {
    if (!LaneOf(at).IsAt(at)) return kNever;
    const LaneTimes& own = times_[at.stage];
    double ready = LaneOf(at).free;
    for (const int other : At(at).after) ready = std::max(ready, own.steps[at.step][other].end);
    if (at.step == 0) return ready;
    for (const int other : At(at).after_previous) ready = std::max(ready, own.steps[at.step - 1][other].end);
    return ready;
  }

  bool Advance(const Place& at) {
    if (ReadyAt(at) == kNever) return false;
    auto [known, is_new] = meets_.try_emplace({at.stage, at.instruction});
    if (is_new) known->second = Meets(at);
    std::vector<Place> all = known->second;
    double start = 0, seconds = 0;
    for (Place& each : all) {
      each.step = at.step;
      start = std::max(start, ReadyAt(each));
      seconds = std::max(seconds, stages_[each.stage].seconds[each.instruction]);
    }
    if (start == kNever) return false;
    for (const Place& each : all) {
      times_[each.stage].steps[each.step][each.instruction] = {start, start + seconds};
      LaneOf(each).Pass(start + seconds);
    }
    return true;
  }

  // Splits time into pieces during which the same instructions run.
  void Cut(int s) {
    struct Edge {
      double time = 0;
      int lane = 0;
      int running = -1;
    };
    std::vector<Edge> edges;
    const std::vector<Instruction>& all = stages_[s].program->instructions;
    for (const std::vector<Interval>& step : times_[s].steps) {
      for (size_t i = 0; i < all.size(); ++i) {
        if (step[i].end <= step[i].start) continue;
        edges.push_back({step[i].start, static_cast<int>(all[i].lane), static_cast<int>(i)});
        edges.push_back({step[i].end, static_cast<int>(all[i].lane), -1});
      }
    }
    // Ends are processed before starts.
    std::stable_sort(edges.begin(), edges.end(), [](const Edge& a, const Edge& b) {
      return std::make_tuple(a.time, a.running >= 0) < std::make_tuple(b.time, b.running >= 0);
    });
    LaneTimes::Piece piece;
    piece.running.fill(-1);
    double from = 0;
    for (const Edge& edge : edges) {
      piece.time = {from, edge.time};
      const bool runs = std::any_of(piece.running.begin(), piece.running.end(), [](int i) { return i >= 0; });
      if (edge.time > from && runs) times_[s].pieces.push_back(piece);
      from = edge.time;
      piece.running[edge.lane] = edge.running;
    }
  }

  const std::vector<TimedStage>& stages_;
  const int steps_;
  std::vector<LaneTimes> times_;
  std::vector<std::array<Lane, kLanes>> lanes_;
  // Key: operation, run of the model, micro-batch.
  std::map<std::tuple<Op, int, int>, Place> stage_transfers_;
  // Key: stage, instruction; the same in every step.
  std::map<std::pair<int, int>, std::vector<Place>> meets_;
};

}  // namespace

std::vector<LaneTimes> RunStages(const std::vector<TimedStage>& stages, int steps) {
  return Stages(stages, steps).Run();
}

// Time between the ends of compute of the last two steps, on the stage that finishes last.
StageBusy BusyOf(const std::vector<TimedStage>& stages, const std::vector<LaneTimes>& times) {
  StageBusy busy;
  std::vector<double> ends(2, 0);
  for (size_t s = 0; s < stages.size(); ++s) {
    const std::vector<Instruction>& all = stages[s].program->instructions;
    const size_t last = times[s].steps.size() - 1;
    FSDPD_CHECK(last > 0);
    double seconds = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i].lane != LaneId::kCompute) continue;
      const Interval& at = times[s].steps[last][i];
      seconds += at.end - at.start;
      ends[0] = std::max(ends[0], times[s].steps[last - 1][i].end);
      ends[1] = std::max(ends[1], at.end);
    }
    busy.compute_seconds.push_back(seconds);
  }
  busy.step_seconds = ends[1] - ends[0];
  return busy;
}

}  // namespace fsdpd

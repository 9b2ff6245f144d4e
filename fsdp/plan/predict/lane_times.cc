#include "fsdp/plan/predict/lane_times.h"

#include <algorithm>
#include <limits>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr size_t kCompute = static_cast<size_t>(LaneId::kCompute);

bool IsBeside(size_t lane) { return IsBackgroundLane(static_cast<LaneId>(lane)); }

class Lanes {
 public:
  Lanes(const Program& program, const std::vector<double>& seconds, int steps, Slowdown slowdown)
      : program_(program), seconds_(seconds), slowdown_(slowdown), steps_(steps) {
    FSDPD_CHECK(seconds.size() == program.instructions.size());
    for (size_t i = 0; i < program.instructions.size(); ++i) {
      queue_[static_cast<size_t>(program.instructions[i].lane)].push_back(static_cast<int>(i));
    }
    times_.steps.assign(steps, std::vector<Interval>(seconds.size(), {kNever, kNever}));
  }

  LaneTimes Run() {
    while (true) {
      while (StartWhatIsReady()) EndWhatTakesNoTime();
      if (Idle()) break;
      Advance();
    }
    for (const Lane& lane : lanes_) FSDPD_CHECK(lane.step == steps_ || queue_[&lane - lanes_.data()].empty());
    return std::move(times_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  struct Lane {
    int step = 0;     // Step of the next or running instruction,
    size_t next = 0;  // and its index in the lane's queue.
    int running = -1;
    double left = 0;  // Remaining seconds of the running one, without contention.
  };

  bool Done(int step, int instruction) const { return times_.steps[step][instruction].end <= now_; }

  bool Ready(int step, int instruction) const {
    const Instruction& i = program_.instructions[instruction];
    const auto done = [&](int at) { return [this, at](int other) { return Done(at, other); }; };
    if (!std::all_of(i.after.begin(), i.after.end(), done(step))) return false;
    return step == 0 || std::all_of(i.after_previous.begin(), i.after_previous.end(), done(step - 1));
  }

  bool StartWhatIsReady() {
    bool started = false;
    for (size_t l = 0; l < kLanes; ++l) {
      Lane& lane = lanes_[l];
      if (lane.running >= 0 || lane.step == steps_ || queue_[l].empty()) continue;
      const int instruction = queue_[l][lane.next];
      if (!Ready(lane.step, instruction)) continue;
      lane.running = instruction;
      lane.left = seconds_[instruction];
      times_.steps[lane.step][instruction].start = now_;
      started = true;
    }
    return started;
  }

  void End(size_t l) {
    Lane& lane = lanes_[l];
    times_.steps[lane.step][lane.running].end = now_;
    lane.running = -1;
    if (++lane.next < queue_[l].size()) return;
    lane.next = 0;
    ++lane.step;
  }

  void EndWhatTakesNoTime() {
    for (size_t l = 0; l < kLanes; ++l) {
      if (lanes_[l].running >= 0 && lanes_[l].left <= 0) End(l);
    }
  }

  bool Idle() const {
    return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.running < 0; });
  }

  // Advances to the end of the next instruction to finish.
  void Advance() {
    bool communicates = false;
    for (size_t l = 0; l < kLanes; ++l) {
      communicates |= l != kCompute && !IsBeside(l) && lanes_[l].running >= 0;
    }
    const bool computes = lanes_[kCompute].running >= 0;
    const auto factor = [&](size_t l) {
      if (l == kCompute) return communicates ? slowdown_.compute : 1;
      if (IsBeside(l)) return 1.0;
      return computes ? slowdown_.communication : 1;
    };
    double step = kNever;
    LaneTimes::Piece piece;
    for (size_t l = 0; l < kLanes; ++l) {
      piece.running[l] = lanes_[l].running;
      if (lanes_[l].running >= 0) step = std::min(step, lanes_[l].left * factor(l));
    }
    piece.time = {now_, now_ + step};
    now_ += step;
    for (size_t l = 0; l < kLanes; ++l) {
      Lane& lane = lanes_[l];
      if (lane.running < 0) continue;
      const bool ends = lane.left * factor(l) <= step;
      lane.left = ends ? 0 : lane.left - step / factor(l);
      if (ends) End(l);
    }
    times_.pieces.push_back(piece);
  }

  const Program& program_;
  const std::vector<double>& seconds_;
  const Slowdown slowdown_;
  const int steps_;
  std::array<std::vector<int>, kLanes> queue_;
  std::array<Lane, kLanes> lanes_;
  double now_ = 0;
  LaneTimes times_;
};

}  // namespace

LaneTimes RunLanes(const Program& program, const std::vector<double>& seconds, int steps, Slowdown slowdown) {
  return Lanes(program, seconds, steps, slowdown).Run();
}

}  // namespace fsdpd

// Totals of the reports of one rank, and their conversion to Prometheus metrics. AddTo() is the
// only place that maps values of a rank to metric names.
//
// Counters restart at zero with every attempt (Prometheus handles it as a reset). Gauges about steps exist
// from the first step on. Only rank 0 reports checkpoints: their counters exist if the job saves, their
// gauges from the first commit on.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/launch/attempt.h"
#include "base/process/metric.h"
#include "proto/fsdpd/v1/telemetry.pb.h"
#include "proto/fsdpd/v1/timeline.pb.h"

namespace fsdpd {

// Label of the job id. Not "job", which Prometheus sets to the name of its scrape job.
constexpr char kJobLabel[] = "fsdpd_job";
// Label of the node name. Not "node", which scrape configs of pods set.
constexpr char kNodeLabel[] = "fsdpd_node";

class RankSeries {
 public:
  RankSeries(RankId id, std::string node, std::string device);

  void Add(const v1::StepReport& report, int world);
  // Memory of each component at the highest sample of the step timeline.
  void Add(const v1::StepTimeline& timeline);
  void SetSaves() { saves_ = true; }
  void SetRoundsToFp8() { rounds_to_fp8_ = true; }
  void Add(const v1::SavedCheckpoint& saved);
  // Counts a bad step: one that was skipped (also in a report), or at which the rank ended.
  void Add(const v1::BadStep& bad);
  void SetPlan(const v1::MemoryPlan& plan) { plan_ = plan; }
  void SetGoal(int64_t steps) { goal_steps_ = static_cast<double>(steps); }  // Steps of the job.
  // `failed`: it ended with an error or a signal, not because of a stop.
  void End(bool failed) {
    up_ = false;
    failed_ = failed;
  }

  void AddTo(MetricSamples* samples) const;

 private:
  struct OpTotals {
    double seconds = 0;
    double exposed_seconds = 0;
    double bytes = 0;
  };

  struct Fp8Totals {
    double numbers = 0;
    double flushed = 0;
  };

  void AddCounters(const LabeledSamples& add) const;
  void AddStep(const LabeledSamples& add) const;
  void AddOfFirstRank(const LabeledSamples& add) const;
  void AddCheckpoints(const LabeledSamples& add) const;

  RankId id_;
  std::string node_;
  std::string device_;
  bool up_ = true;
  bool failed_ = false;
  double goal_steps_ = 0;
  double steps_ = 0;
  double step_seconds_ = 0;
  double tokens_ = 0;
  double loss_tokens_ = 0;
  double compute_seconds_ = 0;
  double exposed_seconds_ = 0;
  double data_wait_seconds_ = 0;
  double skipped_steps_ = 0;
  std::array<double, v1::BadStepKind_ARRAYSIZE> bad_steps_ = {};
  std::optional<double> validation_loss_;  // From the last evaluation.
  std::array<OpTotals, v1::CommOp_ARRAYSIZE> ops_ = {};
  std::array<Fp8Totals, v1::Fp8Class_ARRAYSIZE> fp8_ = {};
  v1::StepReport last_;
  std::optional<v1::MemoryReport> spike_;             // Memory of the last step with a spike.
  std::vector<std::pair<std::string, double>> held_;  // From the last step timeline, by component.
  bool saves_ = false;
  bool rounds_to_fp8_ = false;
  double checkpoints_ = 0;
  double failed_checkpoints_ = 0;
  double checkpoint_stall_seconds_ = 0;
  std::optional<v1::SavedCheckpoint> last_checkpoint_;  // The last committed one.
  v1::MemoryPlan plan_;
};

}  // namespace fsdpd

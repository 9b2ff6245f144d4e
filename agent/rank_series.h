// What one rank has reported, added up for Prometheus, and the table that says under which names. The table
// is the only place where a metric of a rank is named: dashboards, alerts and docs follow it.
//
// Counters start again with every attempt (Prometheus sees a reset). Gauges of a step exist from the first
// step on. Checkpoints are rank 0's to tell: their counters exist where the job saves, their gauges from the
// first commit on. Thread safety: none.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/course.pb.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// The job's id. Not "job", which is the label of Prometheus' own scrape jobs: theirs would overwrite it.
constexpr char kJobLabel[] = "fsdpd_job";
// The node's name. Not "node", which scrapes of pods set.
constexpr char kNodeLabel[] = "fsdpd_node";

class RankSeries {
 public:
  RankSeries(RankId id, std::string node, std::string device);

  void Add(const v1::StepReport& report, int world);
  // What each component held when the step's memory was highest.
  void Add(const v1::StepCourse& course);
  void SetSaves() { saves_ = true; }
  void SetRoundsToFp8() { rounds_to_fp8_ = true; }
  void Add(const v1::SavedCheckpoint& saved);
  // One that was skipped, which a report says too, or that the rank ended by.
  void Add(const v1::BadStep& bad);
  void SetPlan(const v1::MemoryPlan& plan) { plan_ = plan; }
  void SetGoal(int64_t steps) { goal_steps_ = static_cast<double>(steps); }  // train.steps.
  // `failed`: otherwise than by exit code 0, and nobody asked for it.
  void End(bool failed) {
    up_ = false;
    failed_ = failed;
  }

  const RankId& id() const { return id_; }

 private:
  friend class SeriesTable;
  struct OpTotals {
    double seconds = 0;
    double exposed_seconds = 0;
    double bytes = 0;
  };

  struct Fp8Totals {
    double numbers = 0;
    double flushed = 0;
  };

  RankId id_;
  std::string node_;
  std::string device_;
  bool up_ = true;
  bool failed_ = false;
  double goal_steps_ = 0;
  double steps_ = 0;
  double step_seconds_ = 0;
  double tokens_ = 0;
  double compute_seconds_ = 0;
  double exposed_seconds_ = 0;
  double data_wait_seconds_ = 0;
  double skipped_steps_ = 0;
  std::array<double, v1::BadStepKind_ARRAYSIZE> bad_steps_ = {};
  std::optional<double> validation_loss_;  // Of the last evaluation.
  std::array<OpTotals, v1::CommOp_ARRAYSIZE> ops_ = {};
  std::array<Fp8Totals, v1::Fp8Class_ARRAYSIZE> fp8_ = {};
  v1::StepReport last_;
  std::optional<v1::MemoryReport> spike_;             // Of the last step that had one.
  std::vector<std::pair<std::string, double>> held_;  // Of the last course, by component.
  bool saves_ = false;
  bool rounds_to_fp8_ = false;
  double checkpoints_ = 0;
  double failed_checkpoints_ = 0;
  double checkpoint_stall_seconds_ = 0;
  std::optional<v1::SavedCheckpoint> last_checkpoint_;  // Of those that were committed.
  v1::MemoryPlan plan_;
};

// The families of all ranks' series, in the table's order; a family without a series is left out.
std::vector<prometheus::MetricFamily> CollectSeries(const std::vector<const RankSeries*>& ranks);

}  // namespace fsdpd

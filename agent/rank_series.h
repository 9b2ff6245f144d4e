// What one rank has reported, added up for Prometheus, and the table that says under which names. The table
// is the only place where a metric of a rank is named: dashboards, alerts and docs follow it.
//
// Counters start again with every attempt (Prometheus sees a reset). Gauges of a step exist from the first
// step on. Thread safety: none.
#pragma once

#include <prometheus/metric_family.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "agent/attempt.h"
#include "proto/fsdpd/v1/telemetry.pb.h"

namespace fsdpd {

// The job's id. Not "job", which is the label of Prometheus' own scrape jobs: theirs would overwrite it.
constexpr char kJobLabel[] = "fsdpd_job";

class RankSeries {
 public:
  RankSeries(RankId id, std::string node, std::string device);

  void Add(const v1::StepReport& report, int world);
  void SetPlan(const v1::MemoryPlan& plan) { plan_ = plan; }
  void SetUp(bool up) { up_ = up; }

  const RankId& id() const { return id_; }

 private:
  friend class SeriesTable;
  struct OpTotals {
    double seconds = 0;
    double exposed_seconds = 0;
    double bytes = 0;
  };

  RankId id_;
  std::string node_;
  std::string device_;
  bool up_ = true;
  double steps_ = 0;
  double step_seconds_ = 0;
  double tokens_ = 0;
  double compute_seconds_ = 0;
  double exposed_seconds_ = 0;
  double skipped_steps_ = 0;
  std::optional<double> validation_loss_;  // Of the last evaluation.
  std::array<OpTotals, v1::CommOp_ARRAYSIZE> ops_ = {};
  v1::StepReport last_;
  v1::MemoryPlan plan_;
};

// The families of all ranks' series, in the table's order; a family without a series is left out.
std::vector<prometheus::MetricFamily> CollectSeries(const std::vector<const RankSeries*>& ranks);

}  // namespace fsdpd

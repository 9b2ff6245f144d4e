#include "agent/metrics/rank_series.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "agent/metrics/metrics.h"
#include "base/process/metric.h"
#include "base/rank/timeline_components.h"

namespace fsdpd {
namespace {

using prometheus::MetricFamily;

struct OpName {
  v1::CommOp op;
  const char* name;
  // Exported from the start, so that rate() is right. The others exist only in jobs with replicas or stages.
  bool always;
};
constexpr OpName kOps[] = {
    {v1::COMM_OP_ALL_GATHER, "all_gather", true},      {v1::COMM_OP_REDUCE_SCATTER, "reduce_scatter", true},
    {v1::COMM_OP_ALL_REDUCE, "all_reduce", true},      {v1::COMM_OP_OUTER_REDUCE, "outer_reduce", false},
    {v1::COMM_OP_OUTER_GATHER, "outer_gather", false}, {v1::COMM_OP_STAGE, "stage", false},
};

struct Fp8Name {
  v1::Fp8Class kind;
  const char* name;
};
constexpr Fp8Name kFp8Names[] = {{v1::FP8_CLASS_WEIGHTS, "weights"},
                                 {v1::FP8_CLASS_INPUTS, "inputs"},
                                 {v1::FP8_CLASS_GRADIENTS, "gradients"}};

MetricLabels Labels(const RankId& id) {
  return {{kJobLabel, id.of.job_id}, {"rank", std::to_string(id.rank)}};
}

double ExcessOf(const v1::MemoryReport& report) {
  int64_t excess = 0;
  for (const int64_t bytes : {report.spike().median_bytes(), report.spike().plan_bytes()}) {
    if (bytes > 0) excess = std::max(excess, report.peak_bytes() - bytes);
  }
  return static_cast<double>(excess);
}

MetricFamily Family(const char* name) { return FamilyOf(AgentMetrics(), name); }

}  // namespace

RankSeries::RankSeries(RankId id, std::string node, std::string device)
    : id_(std::move(id)), node_(std::move(node)), device_(std::move(device)) {}

void RankSeries::Add(const v1::StepReport& report, int world) {
  steps_ += 1;
  step_seconds_ += report.step_seconds();
  tokens_ += static_cast<double>(report.tokens()) / std::max(1, world);
  compute_seconds_ += report.compute_seconds();
  exposed_seconds_ += report.exposed_seconds();
  data_wait_seconds_ += report.data_wait_seconds();
  skipped_steps_ += report.skipped() ? 1 : 0;
  if (report.has_bad_step()) Add(report.bad_step());
  if (report.has_evaluation()) validation_loss_ = report.evaluation().loss();
  for (const v1::OpTime& time : report.ops()) {
    if (!v1::CommOp_IsValid(time.op())) continue;  // Unknown: from a newer rank.
    OpTotals& totals = ops_[static_cast<size_t>(time.op())];
    totals.seconds += time.seconds();
    totals.exposed_seconds += time.exposed_seconds();
    totals.bytes += static_cast<double>(time.bytes());
  }
  for (const v1::StepReport::Fp8Stats& seen : report.fp8()) {
    if (!v1::Fp8Class_IsValid(seen.kind())) continue;
    Fp8Totals& totals = fp8_[static_cast<size_t>(seen.kind())];
    totals.numbers += static_cast<double>(seen.values());
    totals.flushed += static_cast<double>(seen.underflows());
  }
  if (report.memory().has_spike()) spike_ = report.memory();
  last_ = report;
}

void RankSeries::Add(const v1::StepTimeline& timeline) {
  const auto sum = [](const v1::StepTimeline::MemorySample& sample) {
    return std::accumulate(sample.bytes().begin(), sample.bytes().end(), int64_t{0});
  };
  const auto highest =
      std::max_element(timeline.memory().begin(), timeline.memory().end(),
                       [&](const auto& one, const auto& other) { return sum(one) < sum(other); });
  if (highest == timeline.memory().end()) return;
  held_.clear();
  // Bounds the series per rank, whatever a newer rank reports.
  constexpr int kMost = kTimelineComponents.size();
  for (int i = 0; i < std::min({timeline.components_size(), highest->bytes_size(), kMost}); ++i)
    held_.emplace_back(timeline.components(i), static_cast<double>(highest->bytes(i)));
}

void RankSeries::Add(const v1::BadStep& bad) {
  if (v1::BadStepKind_IsValid(bad.kind())) bad_steps_[static_cast<size_t>(bad.kind())] += 1;
}

void RankSeries::Add(const v1::SavedCheckpoint& saved) {
  if (!saved.format().empty()) return;  // An export of a checkpoint that was counted already.
  saves_ = true;
  checkpoint_stall_seconds_ += saved.stall_seconds();
  if (!saved.error().empty()) {
    failed_checkpoints_ += 1;
    return;
  }
  checkpoints_ += 1;
  last_checkpoint_ = saved;
}

class SeriesTable {
 public:
  explicit SeriesTable(const std::vector<const RankSeries*>& ranks) : ranks_(ranks) {}

  std::vector<MetricFamily> Collect() {
    Counters();
    Operations();
    Gauges();
    Fp8();
    Routers();
    Spikes();
    Checkpoints();
    Components("fsdpd_memory_plan_bytes", [](const RankSeries& r) {
      std::vector<std::pair<std::string, double>> planned;
      for (const v1::MemoryPlan::Component& component : r.plan_.components())
        planned.emplace_back(component.name(), static_cast<double>(component.bytes()));
      return planned;
    });
    Components("fsdpd_memory_component_bytes", [](const RankSeries& r) { return r.held_; });
    Identities();
    return std::move(families_);
  }

 private:
  using Value = double (*)(const RankSeries&);
  using MaybeValue = std::optional<double> (*)(const RankSeries&);
  using CheckpointValue = double (*)(const v1::SavedCheckpoint&);
  using OpValue = double (*)(const RankSeries::OpTotals&);
  using ByComponent = std::vector<std::pair<std::string, double>> (*)(const RankSeries&);

  void Counter(const char* name, Value value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) AddSample(&family, Labels(rank->id_), value(*rank));
    Keep(std::move(family));
  }

  void Operation(const char* name, OpValue value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      for (const OpName& op : kOps) {
        if (!op.always && rank->ops_[op.op].bytes == 0) continue;
        MetricLabels labels = Labels(rank->id_);
        labels.push_back({"op", op.name});
        AddSample(&family, std::move(labels), value(rank->ops_[op.op]));
      }
    }
    Keep(std::move(family));
  }

  // A gauge that only some jobs have.
  void MaybeGauge(const char* name, MaybeValue value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      if (const auto known = value(*rank)) AddSample(&family, Labels(rank->id_), *known);
    }
    Keep(std::move(family));
  }

  // Counter of ranks that save, exported from the start, so that rate() sees the first failure.
  void CheckpointCounter(const char* name, Value value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      if (rank->saves_) AddSample(&family, Labels(rank->id_), value(*rank));
    }
    Keep(std::move(family));
  }

  void CheckpointGauge(const char* name, CheckpointValue value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      if (rank->last_checkpoint_) AddSample(&family, Labels(rank->id_), value(*rank->last_checkpoint_));
    }
    Keep(std::move(family));
  }

  void StepGauge(const char* name, Value value) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      if (rank->steps_ > 0) AddSample(&family, Labels(rank->id_), value(*rank));
    }
    Keep(std::move(family));
  }

  void Counters() {
    Counter("fsdpd_steps_total", [](const RankSeries& r) { return r.steps_; });
    Counter("fsdpd_step_seconds_total", [](const RankSeries& r) { return r.step_seconds_; });
    Counter("fsdpd_tokens_total", [](const RankSeries& r) { return r.tokens_; });
    Counter("fsdpd_compute_seconds_total", [](const RankSeries& r) { return r.compute_seconds_; });
    Counter("fsdpd_exposed_seconds_total", [](const RankSeries& r) { return r.exposed_seconds_; });
    Counter("fsdpd_data_wait_seconds_total", [](const RankSeries& r) { return r.data_wait_seconds_; });
    Counter("fsdpd_skipped_steps_total", [](const RankSeries& r) { return r.skipped_steps_; });
    BadSteps();
    Counter("fsdpd_memory_spikes_total",
            [](const RankSeries& r) { return static_cast<double>(r.last_.memory().spikes()); });
    Counter("fsdpd_device_mallocs_total",
            [](const RankSeries& r) { return static_cast<double>(r.last_.memory().device_mallocs()); });
    Counter("fsdpd_device_frees_total",
            [](const RankSeries& r) { return static_cast<double>(r.last_.memory().device_frees()); });
    Counter("fsdpd_allocations_total",
            [](const RankSeries& r) { return static_cast<double>(r.last_.memory().allocations()); });
  }

  // Steps skipped by fp16 loss scaling do not count. All ranks reach the same decision, so rank 0 is
  // sufficient.
  void BadSteps() {
    MetricFamily family = Family("fsdpd_bad_steps_total");
    for (const RankSeries* rank : ranks_) {
      if (rank->id_.rank != 0) continue;
      for (const auto& [kind, name] : {std::pair(v1::BAD_STEP_KIND_NONFINITE, "nonfinite"),
                                       std::pair(v1::BAD_STEP_KIND_SPIKE, "spike")}) {
        MetricLabels labels = Labels(rank->id_);
        labels.push_back({"kind", name});
        AddSample(&family, std::move(labels), rank->bad_steps_[static_cast<size_t>(kind)]);
      }
    }
    Keep(std::move(family));
  }

  void Operations() {
    Operation("fsdpd_comm_seconds_total", [](const RankSeries::OpTotals& t) { return t.seconds; });
    Operation("fsdpd_comm_exposed_seconds_total",
              [](const RankSeries::OpTotals& t) { return t.exposed_seconds; });
    Operation("fsdpd_comm_bytes_total", [](const RankSeries::OpTotals& t) { return t.bytes; });
  }

  void Gauges() {
    MaybeGauge("fsdpd_copy_engines", [](const RankSeries& r) {
      return r.last_.has_copy_engines() ? std::optional(r.last_.copy_engines() ? 1.0 : 0.0) : std::nullopt;
    });
    StepGauge("fsdpd_step_seconds", [](const RankSeries& r) { return r.last_.step_seconds(); });
    StepGauge("fsdpd_loss", [](const RankSeries& r) { return r.last_.loss(); });
    StepGauge("fsdpd_grad_norm", [](const RankSeries& r) { return r.last_.grad_norm(); });
    // The learning rate is the same on all ranks; export it for rank 0 only, to limit the series per rank.
    MaybeGauge("fsdpd_learning_rate", [](const RankSeries& r) {
      return r.id_.rank == 0 && r.steps_ > 0 ? std::optional(r.last_.learning_rate()) : std::nullopt;
    });
    MaybeGauge("fsdpd_loss_scale", [](const RankSeries& r) {
      return r.last_.has_loss_scale() ? std::optional(r.last_.loss_scale()) : std::nullopt;
    });
    // Rank 0 only, like the learning rate.
    MaybeGauge("fsdpd_validation_loss",
               [](const RankSeries& r) { return r.id_.rank == 0 ? r.validation_loss_ : std::nullopt; });
    StepGauge("fsdpd_last_step_timestamp_seconds",
              [](const RankSeries& r) { return static_cast<double>(r.last_.unix_nanos()) * 1e-9; });
    // Exported only at the end (value 0), to limit the series per rank.
    MaybeGauge("fsdpd_steps_left", [](const RankSeries& r) {
      const double left = r.goal_steps_ - static_cast<double>(r.last_.step());
      return r.last_.step() > 0 && left == 0 ? std::optional(left) : std::nullopt;
    });
    StepGauge("fsdpd_memory_allocated_bytes",
              [](const RankSeries& r) { return static_cast<double>(r.last_.memory().allocated_bytes()); });
    StepGauge("fsdpd_memory_reserved_bytes",
              [](const RankSeries& r) { return static_cast<double>(r.last_.memory().reserved_bytes()); });
    StepGauge("fsdpd_memory_peak_bytes",
              [](const RankSeries& r) { return static_cast<double>(r.last_.memory().peak_bytes()); });
  }

  // Rank 0 only, like Routers(), to limit the series per rank.
  void Fp8() {
    MetricFamily numbers = Family("fsdpd_fp8_values_total"), flushed = Family("fsdpd_fp8_underflows_total"),
                 scales = Family("fsdpd_fp8_scale");
    for (const RankSeries* rank : ranks_) {
      if (rank->id_.rank != 0 || !rank->rounds_to_fp8_) continue;
      const auto labels = [&](const char* name, const char* bound) {
        MetricLabels made = Labels(rank->id_);
        made.push_back({"class", name});
        if (bound != nullptr) made.push_back({"bound", bound});
        return made;
      };
      for (const Fp8Name& of : kFp8Names) {
        AddSample(&numbers, labels(of.name, nullptr), rank->fp8_[of.kind].numbers);
        AddSample(&flushed, labels(of.name, nullptr), rank->fp8_[of.kind].flushed);
        for (const v1::StepReport::Fp8Stats& last : rank->last_.fp8()) {
          if (last.kind() != of.kind) continue;
          AddSample(&scales, labels(of.name, "min"), last.min_scale());
          AddSample(&scales, labels(of.name, "max"), last.max_scale());
        }
      }
    }
    for (MetricFamily* family : {&numbers, &flushed, &scales}) Keep(std::move(*family));
  }

  void Routers() {
    using Routing = v1::StepReport::Routing;
    const auto gauge = [&](const char* name, double (Routing::*value)() const) {
      MetricFamily family = Family(name);
      for (const RankSeries* rank : ranks_) {
        if (rank->id_.rank == 0 && rank->last_.has_routing())
          AddSample(&family, Labels(rank->id_), (rank->last_.routing().*value)());
      }
      Keep(std::move(family));
    };
    gauge("fsdpd_expert_imbalance", &Routing::imbalance);
    gauge("fsdpd_router_entropy", &Routing::entropy);
    gauge("fsdpd_router_balance_loss", &Routing::balance_loss);
    gauge("fsdpd_router_z_loss", &Routing::z_loss);
    MetricFamily room = Family("fsdpd_expert_capacity_factor");
    for (const RankSeries* rank : ranks_) {
      if (rank->id_.rank == 0 && rank->last_.routing().capacity_factor() > 0)
        AddSample(&room, Labels(rank->id_), rank->last_.routing().capacity_factor());
    }
    Keep(std::move(room));
  }

  // At most one series: that of the newest spike.
  void Spikes() {
    MetricFamily family = Family("fsdpd_memory_spike_excess_bytes");
    for (const RankSeries* rank : ranks_) {
      if (!rank->spike_.has_value()) continue;
      MetricLabels labels = Labels(rank->id_);
      labels.push_back({"instruction", rank->spike_->spike().instruction()});
      AddSample(&family, std::move(labels), ExcessOf(*rank->spike_));
    }
    Keep(std::move(family));
  }

  void Checkpoints() {
    CheckpointCounter("fsdpd_checkpoints_total", [](const RankSeries& r) { return r.checkpoints_; });
    CheckpointCounter("fsdpd_checkpoint_failures_total",
                      [](const RankSeries& r) { return r.failed_checkpoints_; });
    CheckpointCounter("fsdpd_checkpoint_stall_seconds_total",
                      [](const RankSeries& r) { return r.checkpoint_stall_seconds_; });
    CheckpointGauge("fsdpd_checkpoint_last_step",
                    [](const v1::SavedCheckpoint& c) { return static_cast<double>(c.step()); });
    CheckpointGauge("fsdpd_checkpoint_last_success_timestamp_seconds",
                    [](const v1::SavedCheckpoint& c) { return static_cast<double>(c.unix_nanos()) * 1e-9; });
    CheckpointGauge("fsdpd_checkpoint_seconds", [](const v1::SavedCheckpoint& c) { return c.seconds(); });
    CheckpointGauge("fsdpd_checkpoint_bytes",
                    [](const v1::SavedCheckpoint& c) { return static_cast<double>(c.bytes()); });
  }

  void Components(const char* name, ByComponent values) {
    MetricFamily family = Family(name);
    for (const RankSeries* rank : ranks_) {
      for (const auto& [component, bytes] : values(*rank)) {
        MetricLabels labels = Labels(rank->id_);
        labels.push_back({"component", component});
        AddSample(&family, std::move(labels), bytes);
      }
    }
    Keep(std::move(family));
  }

  void Identities() {
    MetricFamily up = Family("fsdpd_rank_up");
    MetricFamily info = Family("fsdpd_rank_info");
    for (const RankSeries* rank : ranks_) {
      AddSample(&up, Labels(rank->id_), rank->up_ ? 1 : 0);
      MetricLabels labels = Labels(rank->id_);
      labels.push_back({"attempt", std::to_string(rank->id_.of.attempt)});
      labels.push_back({kNodeLabel, rank->node_});
      labels.push_back({"device", rank->device_});
      AddSample(&info, std::move(labels), 1);
    }
    Keep(std::move(up));
    MaybeGauge("fsdpd_rank_failed",
               [](const RankSeries& r) { return r.failed_ ? std::optional(1.0) : std::nullopt; });
    Keep(std::move(info));
  }

  void Keep(MetricFamily family) {
    if (!family.metric.empty()) families_.push_back(std::move(family));
  }

  const std::vector<const RankSeries*>& ranks_;
  std::vector<MetricFamily> families_;
};

std::vector<MetricFamily> CollectSeries(const std::vector<const RankSeries*>& ranks) {
  return SeriesTable(ranks).Collect();
}

}  // namespace fsdpd

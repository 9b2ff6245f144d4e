#include "agent/metrics/rank_series.h"

#include <algorithm>
#include <numeric>

#include "base/rank/timeline_components.h"

namespace fsdpd {
namespace {

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

double ExcessOf(const v1::MemoryReport& report) {
  int64_t excess = 0;
  for (const int64_t bytes : {report.spike().median_bytes(), report.spike().plan_bytes()}) {
    if (bytes > 0) excess = std::max(excess, report.peak_bytes() - bytes);
  }
  return static_cast<double>(excess);
}

}  // namespace

RankSeries::RankSeries(RankId id, std::string node, std::string device)
    : id_(std::move(id)), node_(std::move(node)), device_(std::move(device)) {}

void RankSeries::Add(const v1::StepReport& report, int world) {
  steps_ += 1;
  step_seconds_ += report.step_seconds();
  tokens_ += static_cast<double>(report.tokens()) / std::max(1, world);
  loss_tokens_ += static_cast<double>(report.loss_tokens()) / std::max(1, world);
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

void RankSeries::AddTo(MetricSamples* samples) const {
  const LabeledSamples add(samples, {{kJobLabel, id_.of.job_id}, {"rank", std::to_string(id_.rank)}});
  AddCounters(add);
  if (steps_ > 0) AddStep(add);
  if (id_.rank == 0) AddOfFirstRank(add);
  AddCheckpoints(add);
  if (last_.has_copy_engines()) add("fsdpd_copy_engines", last_.copy_engines());
  if (last_.has_loss_scale()) add("fsdpd_loss_scale", last_.loss_scale());
  // Exported only at the end (value 0), to limit the series per rank.
  if (last_.step() > 0 && last_.step() == goal_steps_) add("fsdpd_steps_left", 0);
  // At most one series: that of the newest spike.
  if (spike_.has_value())
    add("fsdpd_memory_spike_excess_bytes", ExcessOf(*spike_),
        {{"instruction", spike_->spike().instruction()}});
  for (const v1::MemoryPlan::Component& component : plan_.components())
    add("fsdpd_memory_plan_bytes", component.bytes(), {{"component", component.name()}});
  for (const auto& [component, bytes] : held_)
    add("fsdpd_memory_component_bytes", bytes, {{"component", component}});
  add("fsdpd_rank_up", up_);
  if (failed_) add("fsdpd_rank_failed", 1);
  add("fsdpd_rank_info", 1,
      {{"attempt", std::to_string(id_.of.attempt)}, {kNodeLabel, node_}, {"device", device_}});
}

void RankSeries::AddCounters(const LabeledSamples& add) const {
  add("fsdpd_steps_total", steps_);
  add("fsdpd_step_seconds_total", step_seconds_);
  add("fsdpd_tokens_total", tokens_);
  add("fsdpd_loss_tokens_total", loss_tokens_);
  add("fsdpd_compute_seconds_total", compute_seconds_);
  add("fsdpd_exposed_seconds_total", exposed_seconds_);
  add("fsdpd_data_wait_seconds_total", data_wait_seconds_);
  add("fsdpd_skipped_steps_total", skipped_steps_);
  add("fsdpd_memory_spikes_total", last_.memory().spikes());
  add("fsdpd_device_mallocs_total", last_.memory().device_mallocs());
  add("fsdpd_device_frees_total", last_.memory().device_frees());
  add("fsdpd_allocations_total", last_.memory().allocations());
  for (const OpName& op : kOps) {
    const OpTotals& totals = ops_[op.op];
    if (!op.always && totals.bytes == 0) continue;
    add("fsdpd_comm_seconds_total", totals.seconds, {{"op", op.name}});
    add("fsdpd_comm_exposed_seconds_total", totals.exposed_seconds, {{"op", op.name}});
    add("fsdpd_comm_bytes_total", totals.bytes, {{"op", op.name}});
  }
}

void RankSeries::AddStep(const LabeledSamples& add) const {
  add("fsdpd_step_seconds", last_.step_seconds());
  add("fsdpd_loss", last_.loss());
  add("fsdpd_grad_norm", last_.grad_norm());
  // The learning rate is the same on all ranks; export it for rank 0 only, to limit the series per rank.
  if (id_.rank == 0) add("fsdpd_learning_rate", last_.learning_rate());
  add("fsdpd_last_step_timestamp_seconds", static_cast<double>(last_.unix_nanos()) * 1e-9);
  add("fsdpd_memory_allocated_bytes", last_.memory().allocated_bytes());
  add("fsdpd_memory_reserved_bytes", last_.memory().reserved_bytes());
  add("fsdpd_memory_peak_bytes", last_.memory().peak_bytes());
}

// To limit the series per rank.
void RankSeries::AddOfFirstRank(const LabeledSamples& add) const {
  // Steps skipped by fp16 loss scaling do not count. All ranks reach the same decision.
  for (const auto& [kind, name] :
       {std::pair(v1::BAD_STEP_KIND_NONFINITE, "nonfinite"), std::pair(v1::BAD_STEP_KIND_SPIKE, "spike")})
    add("fsdpd_bad_steps_total", bad_steps_[static_cast<size_t>(kind)], {{"kind", name}});
  add("fsdpd_validation_loss", validation_loss_);
  const v1::StepReport::Routing& routing = last_.routing();
  if (last_.has_routing()) {
    add("fsdpd_expert_imbalance", routing.imbalance());
    add("fsdpd_router_entropy", routing.entropy());
    add("fsdpd_router_balance_loss", routing.balance_loss());
    add("fsdpd_router_z_loss", routing.z_loss());
  }
  if (routing.capacity_factor() > 0) add("fsdpd_expert_capacity_factor", routing.capacity_factor());
  if (!rounds_to_fp8_) return;
  for (const Fp8Name& of : kFp8Names) {
    add("fsdpd_fp8_values_total", fp8_[of.kind].numbers, {{"class", of.name}});
    add("fsdpd_fp8_underflows_total", fp8_[of.kind].flushed, {{"class", of.name}});
    for (const v1::StepReport::Fp8Stats& last : last_.fp8()) {
      if (last.kind() != of.kind) continue;
      add("fsdpd_fp8_scale", last.min_scale(), {{"class", of.name}, {"bound", "min"}});
      add("fsdpd_fp8_scale", last.max_scale(), {{"class", of.name}, {"bound", "max"}});
    }
  }
}

void RankSeries::AddCheckpoints(const LabeledSamples& add) const {
  if (saves_) {  // From the start, so that rate() sees the first failure.
    add("fsdpd_checkpoints_total", checkpoints_);
    add("fsdpd_checkpoint_failures_total", failed_checkpoints_);
    add("fsdpd_checkpoint_stall_seconds_total", checkpoint_stall_seconds_);
  }
  if (!last_checkpoint_.has_value()) return;
  add("fsdpd_checkpoint_last_step", last_checkpoint_->step());
  add("fsdpd_checkpoint_last_success_timestamp_seconds",
      static_cast<double>(last_checkpoint_->unix_nanos()) * 1e-9);
  add("fsdpd_checkpoint_seconds", last_checkpoint_->seconds());
  add("fsdpd_checkpoint_bytes", last_checkpoint_->bytes());
}

}  // namespace fsdpd

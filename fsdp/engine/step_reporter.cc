#include "fsdp/engine/step_reporter.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/memory/device_allocator.h"
#include "fsdp/telemetry/memory_file.h"
#include "fsdp/torch/cuda_device.h"

namespace fsdpd {
namespace {

// 0 if other ranks allocate in the same process, so that the total cannot be compared with the plan.
int64_t PlannedPeak(const StepReporter::Options& options) {
  const bool own = options.plan->spec.device == DeviceKind::kCuda || options.own_process;
  return own ? options.plan->memory.peak_bytes : 0;
}

PersistentBytes StandingBytesOf(const ShardedParams& params, const Arena& arena) {
  PersistentBytes bytes;
  const auto add = [](const at::Tensor& tensor, int64_t* sum) {
    if (tensor.defined()) *sum += static_cast<int64_t>(tensor.nbytes());
  };
  for (int b = 0; b < params.size(); ++b) {
    const BucketShard& shard = params.bucket(b);
    const bool offloaded = params.host_copy(b).defined();  // In host memory.
    for (const at::Tensor& main : {shard.main, shard.split.high, offloaded ? at::Tensor() : shard.split.low})
      add(main, &bytes.main_params);
    for (const at::Tensor& moment : shard.moments) {
      if (!offloaded) add(moment, &bytes.optimizer);
    }
    add(params.grad_shard(b), &bytes.gradients);
  }
  bytes.arena = arena.bytes();
  return bytes;
}

// Routing statistics are means over tokens and layers; the losses are means over targets that count.
v1::StepReport::Routing RoutingOf(const StepResult& result, int64_t tokens, int64_t layers) {
  const auto mean_of = [&](int i, int64_t n) {
    return WithoutNanSign(result.routing[i] / static_cast<double>(std::max<int64_t>(n, 1) * layers));
  };
  const auto mean = [&](int i) { return mean_of(i, i < 2 ? tokens : result.counted); };
  v1::StepReport::Routing routing;
  routing.set_imbalance(mean(0));
  routing.set_entropy(mean(1));
  routing.set_balance_loss(mean(2));
  routing.set_z_loss(mean(3));
  return routing;
}

void AddFp8(const StepResult& result, v1::StepReport* report) {
  static_assert(v1::Fp8Class_MAX == kFp8Classes);
  for (int c = 0; c < kFp8Classes; ++c) {
    const double* const values = result.fp8.data() + static_cast<ptrdiff_t>(c) * kFp8Statistics / kFp8Classes;
    if (values[0] == 0) continue;
    v1::StepReport::Fp8Stats* const numbers = report->add_fp8();
    numbers->set_kind(static_cast<v1::Fp8Class>(c + 1));
    numbers->set_values(static_cast<int64_t>(values[0]));
    numbers->set_underflows(static_cast<int64_t>(values[1]));
    numbers->set_min_scale(values[2]);
    numbers->set_max_scale(values[3]);
  }
}

}  // namespace

StepReporter::StepReporter(Options options, const Arena* arena, const ShardedParams& params,
                           int64_t steps_done)
    : options_(std::move(options)),
      arena_(arena),
      peak_([this] { return ReadMemoryCounters(spec().device, options_.device_index); },
            [this] { ResetPeakMemory(spec().device, options_.device_index); },
            /*by_instruction=*/static_cast<bool>(options_.on_timeline)),
      spikes_(PlannedPeak(options_)),
      warnings_(spec(), steps_done) {
  if (options_.on_timeline)
    timelines_.emplace(options_.plan->program, options_.plan->layout, StandingBytesOf(params, *arena),
                       /*full_gradients=*/!spec().shards_grads());
  MakeRecorder();
}

StepReporter::~StepReporter() {
  if (records_memory_) RecordMemory(spec().device, false);
  if (recorder_ != nullptr) recorder_->Record(false);  // A trace that is not yet written includes it.
}

void StepReporter::MakeRecorder() {
  if (options_.traces == nullptr || spec().device != DeviceKind::kCuda) return;
  absl::StatusOr<std::string> bus_id = CudaBusId(options_.device_index);
  if (!bus_id.ok()) {
    LogWarning("could not record device activity for traces error=%s", bus_id.status().message());
    return;
  }
  recorder_ = std::make_shared<DeviceRecorder>(options_.device_index, *std::move(bus_id));
}

void StepReporter::Watch(Executor* executor) {
  executor_ = executor;
  executor->WatchMemory(&peak_);
}

bool StepReporter::TakesTimeline(absl::Time now) {
  const bool takes = timelines_.has_value() && now >= timeline_submitted_ + kTimelineInterval;
  if (takes) timeline_submitted_ = now;
  return takes;
}

void StepReporter::BeginStep(int64_t first, int64_t last) {
  if (options_.traces != nullptr) {
    const bool records = options_.traces->RecordsMemory();
    if (std::exchange(records_memory_, records) != records) RecordMemory(spec().device, records);
    if (recorder_ != nullptr) recorder_->Record(options_.traces->Expects(first, last));
  }
  peak_.Begin();
}

void StepReporter::EndStep(OpenStep* step) {
  step->memory = ReadMemory();
  if (step->reports_timeline) step->held = HeldByStep();
  TakeSnapshot(step);
}

v1::MemoryReport StepReporter::ReadMemory() {
  const MemoryCounters counters = ReadMemoryCounters(spec().device, options_.device_index);
  const int64_t outside = arena_->outside_bytes();
  v1::MemoryReport report;
  report.set_allocated_bytes(counters.allocated_bytes + outside);
  report.set_reserved_bytes(counters.reserved_bytes + outside);
  // A launched graph uses the memory of its recording.
  if (!executor_->launched_as_graph()) step_peak_bytes_ = peak_.highest_bytes();
  report.set_peak_bytes(step_peak_bytes_ + outside);
  report.set_device_mallocs(counters.device_mallocs);
  report.set_device_frees(counters.device_frees);
  report.set_allocations(counters.allocations);
  report.set_arena_bytes(arena_->bytes());
  report.set_allocator_retries(counters.retries);
  report.set_out_of_memory(counters.out_of_memory);
  if (const std::optional<Spike> found = spikes_.Add(report.peak_bytes())) {
    v1::MemorySpike* const spike = report.mutable_spike();
    spike->set_median_bytes(found->median_bytes);
    spike->set_plan_bytes(options_.plan->memory.peak_bytes);
    const std::optional<int> index = peak_.instruction();
    if (index.has_value()) spike->set_instruction(NameOf(*index));
  }
  report.set_spikes(spikes_.spikes());
  return report;
}

// Adds the arena, which is allocated outside of the allocator.
HeldBytes StepReporter::HeldByStep() const {
  const int64_t outside = arena_->outside_bytes();
  HeldBytes held = peak_.held();
  held.at_begin += outside;
  for (HeldBytes::Instruction& each : held.by_instruction) {
    if (each.highest > 0) each = {each.highest + outside, each.left + outside};
  }
  return held;
}

// Names are shared with a writer thread that may outlive the plan.
void StepReporter::TakeSnapshot(OpenStep* step) {
  if (options_.traces == nullptr ||
      !options_.traces->TakesMemory(step->inputs.step, step->memory.has_spike()))
    return;
  step->snapshot =
      std::make_shared<const MemorySnapshot>(TakeMemorySnapshot(spec().device, options_.device_index));
  if (names_ != nullptr) return;
  std::vector<std::string> names;
  for (size_t i = 0; i < options_.plan->program.instructions.size(); ++i)
    names.push_back(NameOf(static_cast<int>(i)));
  names_ = std::make_shared<const std::vector<std::string>>(std::move(names));
}

void StepReporter::WriteTraces(const OpenStep& step) {
  if (options_.traces == nullptr) return;
  std::function<std::string()> memory_file;
  if (step.snapshot != nullptr) {
    memory_file = [snapshot = step.snapshot, names = names_] {
      return MemoryFile(*snapshot, [&](int index) {
        const auto i = static_cast<size_t>(index);  // Blocks may be from another program.
        return i < names->size() ? (*names)[i] : absl::StrCat("instruction ", index);
      });
    };
  }
  if (options_.traces->Takes(step.inputs.step)) {
    std::function<void(Timeline*)> complete;
    if (recorder_ != nullptr)
      complete = [recorder = recorder_](Timeline* timeline) { recorder->AddTo(timeline); };
    options_.traces->Write(TraceOf(step), std::move(memory_file), std::move(complete));
  } else if (memory_file != nullptr) {
    options_.traces->WriteMemory(step.inputs.step, std::move(memory_file));
  }
}

// Consecutive traced steps are placed by the measured distance. The first one ends when the host saw its end,
// which may be late; it never begins before the end of an earlier traced step.
Timeline StepReporter::TraceOf(const OpenStep& step) {
  const std::vector<Span>& spans = executor_->spans();
  double last_seconds = 0;
  for (const Span& span : spans) last_seconds = std::max(last_seconds, span.end_seconds);
  const bool follows = traced_step_ != 0 && traced_step_ == step.inputs.step - 1;
  traced_begin_ = follows ? traced_begin_ + absl::Seconds(executor_->SecondsSinceStepBefore())
                          : std::max(executor_->collected_at() - absl::Seconds(last_seconds), traced_end_);
  traced_end_ = traced_begin_ + absl::Seconds(last_seconds);
  traced_step_ = step.inputs.step;
  Timeline timeline = TimelineOf(step.inputs.step);
  AddStep(options_.plan->program, spans, step.memory, &timeline);
  timeline.begin_unix_nanos = absl::ToUnixNanos(traced_begin_);
  return timeline;
}

Timeline StepReporter::TimelineOf(int64_t step) const {
  if (executor_->spans().empty()) return {};  // Resumed after its last step.
  return StepTimeline(options_.plan->program, options_.plan->layout, executor_->spans(), step,
                      absl::StrFormat("%s: a step on rank %d of %d, measured", spec().name,
                                      options_.mesh->position().rank, spec().mesh.world()));
}

v1::StepReport StepReporter::Report(const OpenStep& step, const StepResult& result,
                                    double expert_capacity) const {
  v1::StepReport report;
  report.set_step(step.inputs.step);
  report.set_loss(WithoutNanSign(result.loss()));
  report.set_grad_norm(WithoutNanSign(result.grad_norm));
  report.set_learning_rate(step.inputs.learning_rate);
  report.set_tokens(spec().tokens_per_step());
  std::vector<Span> spans = executor_->spans();
  if (executor_->collected_launch()) spans.emplace_back();  // At second 0, where it began.
  const StepTiming timing = SummariseStep(spans);
  report.set_step_seconds(timing.step_seconds);
  report.set_compute_seconds(timing.compute_seconds);
  report.set_exposed_seconds(timing.exposed_seconds);
  for (const v1::OpTime& op : timing.ops) *report.add_ops() = op;
  *report.mutable_memory() = step.memory;
  report.set_skipped(result.skipped());
  if (spec().scales_loss()) report.set_loss_scale(result.loss_scale);
  report.set_data_wait_seconds(step.batches.waited_seconds());
  report.set_loss_tokens(result.counted);
  if (const int64_t layers = ExpertLayers(spec().model); layers > 0)
    *report.mutable_routing() = RoutingOf(result, spec().tokens_per_step(), layers);
  if (const int64_t ranks = spec().mesh.size(Axis::kExpert); ranks > 1)
    report.mutable_routing()->set_capacity_factor(std::min(expert_capacity, static_cast<double>(ranks)));
  AddFp8(result, &report);
  if (spec().device == DeviceKind::kCuda && spec().shards_optimizer() &&
      spec().mesh.SizeOf(Group::kShard) > 1) {
    report.set_copy_engines(options_.mesh->Find(Group::kShard, Role::kGather)->HasCopyEngines());
  }
  return report;
}

void StepReporter::AddWarnings(const OpenStep& step, const StepResult& result, v1::StepReport* report) {
  StepData data;
  data.step = step.inputs.step;
  data.targets = result.counted;
  if (report->has_evaluation()) data.evaluation_targets = report->evaluation().tokens();
  for (const Batch& batch : step.batches.batches()) {
    data.tokens_read += batch.tokens.numel();
    data.document_ends += batch.document_ends;
  }
  for (std::string& warning : warnings_.Take(data)) *report->add_warnings() = std::move(warning);
  for (const std::string& warning : step.warnings) *report->add_warnings() = warning;
}

absl::Status StepReporter::SendTimeline(const OpenStep& step, const v1::StepReport& report) const {
  if (!step.reports_timeline) return absl::OkStatus();
  v1::StepTimeline timeline = timelines_->Of(step.inputs.step, executor_->spans(), step.held);
  timeline.set_unix_nanos(report.unix_nanos());
  timeline.set_step_seconds(report.step_seconds());
  return options_.on_timeline(timeline);
}

}  // namespace fsdpd

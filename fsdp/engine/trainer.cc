#include "fsdp/engine/trainer.h"

#include <absl/strings/str_format.h>
#include <absl/time/clock.h>

#include <cmath>

#include "base/check.h"
#include "fsdp/engine/schedule.h"
#include "fsdp/memory/counters.h"
#include "fsdp/memory/torch_status.h"
#include "fsdp/model/llama.h"

namespace fsdpd {
namespace {

at::Device DeviceOf(const TrainerOptions& options) {
  if (options.plan->spec.device == DeviceKind::kCpu) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.device_index));
}

int64_t ShardOf(const TrainerOptions& options) { return options.plan->layout.shards == 1 ? 0 : options.rank; }

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> MakeUnits(const Plan& plan, at::Device device) {
  std::vector<std::unique_ptr<Unit>> units;
  FSDPD_RETURN_IF_ERROR(CatchTorch([&] {
    units = MakeLlama(plan.spec.model, plan.model, plan.spec.data.sequence_length, device);
    return absl::OkStatus();
  }));
  return units;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Make(TrainerOptions options) {
  const Plan& plan = *options.plan;
  FSDPD_CHECK(plan.accepted() && options.gather != nullptr && options.reduce != nullptr);
  FSDPD_CHECK(options.gather->size() == plan.spec.world && options.reduce->size() == plan.spec.world);
  const at::Device device = DeviceOf(options);
  FSDPD_ASSIGN_OR_RETURN(Batches batches, Batches::Open(plan.spec, options.rank));
  FSDPD_ASSIGN_OR_RETURN(Arena arena, Arena::Make(plan.program.arena_bytes, device));
  FSDPD_ASSIGN_OR_RETURN(auto units, MakeUnits(plan, device));
  InitialValues initial = options.initial;
  if (!initial) {
    initial = [&](int unit, int param) { return units[unit]->InitialValue(param, plan.spec.seed); };
  }
  FSDPD_ASSIGN_OR_RETURN(ShardedParams params,
                         ShardedParams::Make(plan.layout, ShardOf(options), device, initial));
  std::unique_ptr<Trainer> trainer(
      new Trainer(std::move(options), std::move(batches), std::move(arena), std::move(params)));
  trainer->units_ = std::move(units);
  OperationParts parts;
  parts.plan = &plan;
  parts.rank = trainer->options_.rank;
  parts.device = device;
  parts.units = &trainer->units_;
  parts.params = &trainer->params_;
  parts.arena = &trainer->arena_;
  parts.gather = trainer->options_.gather.get();
  parts.reduce = trainer->options_.reduce.get();
  FSDPD_ASSIGN_OR_RETURN(trainer->executor_,
                         Executor::Make(parts, MakeLanes(plan.spec.device, trainer->options_.device_index)));
  return trainer;
}

Trainer::Trainer(TrainerOptions options, Batches batches, Arena arena, ShardedParams params)
    : options_(std::move(options)),
      batches_(std::move(batches)),
      arena_(std::move(arena)),
      params_(std::move(params)),
      next_batches_(std::vector<Batch>()) {}

int64_t Trainer::shard() const { return ShardOf(options_); }

void Trainer::Abort() {
  options_.gather->Abort();
  options_.reduce->Abort();
}

void Trainer::AwaitOthers() { options_.reduce->Barrier().IgnoreError(); }

absl::Status Trainer::Run(const std::function<absl::Status(const v1::StepReport&)>& on_step) {
  next_batches_ = ReadBatches(1);
  for (int64_t step = 1; step <= spec().steps; ++step) {
    absl::StatusOr<v1::StepReport> report = Step(step);
    absl::Status status = report.ok() ? on_step(*report) : report.status();
    if (status.ok()) continue;
    Abort();
    // Told to stop, a rank may first notice that its peers have left: that is no failure of its own.
    if (options_.stop->load()) return absl::CancelledError(absl::StrFormat("stopped at step %d", step));
    return absl::Status(status.code(), absl::StrFormat("step %d: %s", step, status.message()));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Batch>> Trainer::ReadBatches(int64_t step) const {
  std::vector<Batch> batches;
  for (int64_t m = 0; m < spec().micro_batches_per_step(); ++m) {
    FSDPD_ASSIGN_OR_RETURN(Batch batch, batches_.Read(step, m));
    batches.push_back(std::move(batch));
  }
  return batches;
}

absl::StatusOr<v1::StepReport> Trainer::Step(int64_t step) {
  FSDPD_RETURN_IF_ERROR(next_batches_.status());
  ResetPeakMemory(spec().device, options_.device_index);
  const std::vector<Batch> batches = *std::move(next_batches_);
  const double learning_rate = LearningRate(spec().schedule, spec().adamw.lr, spec().steps, step);
  FSDPD_ASSIGN_OR_RETURN(const Operations::StepResult result,
                         executor_->Step(step, learning_rate, batches, *options_.stop, [&] {
                           if (step < spec().steps) next_batches_ = ReadBatches(step + 1);
                         }));
  if (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)) {
    return absl::OutOfRangeError(absl::StrFormat(
        "not finite: loss %g, gradient norm %g (learning rate %g); lower optimizer.adamw.lr, add "
        "warmup_steps or set optimizer.clip_norm",
        result.loss, result.grad_norm, learning_rate));
  }
  return Report(step, learning_rate, result);
}

v1::StepReport Trainer::Report(int64_t step, double learning_rate, const Operations::StepResult& result) {
  v1::StepReport report;
  report.set_step(step);
  report.set_loss(result.loss);
  report.set_grad_norm(result.grad_norm);
  report.set_learning_rate(learning_rate);
  report.set_tokens(spec().tokens_per_step());
  report.set_unix_nanos(absl::GetCurrentTimeNanos());
  const StepTiming timing = SummariseStep(executor_->spans());
  report.set_step_seconds(timing.step_seconds);
  report.set_compute_seconds(timing.compute_seconds);
  for (const v1::OpTime& op : timing.ops) *report.add_ops() = op;
  ReportMemory(report.mutable_memory());
  return report;
}

void Trainer::ReportMemory(v1::MemoryReport* report) {
  const MemoryCounters counters = ReadMemoryCounters(spec().device, options_.device_index);
  report->set_allocated_bytes(counters.allocated_bytes);
  report->set_reserved_bytes(counters.reserved_bytes);
  report->set_peak_bytes(counters.peak_bytes);
  report->set_device_mallocs(counters.device_mallocs);
  report->set_device_frees(counters.device_frees);
  report->set_allocations(counters.allocations);
  report->set_arena_bytes(arena_.bytes());
  spikes_.Add(counters.peak_bytes);
  report->set_spikes(spikes_.spikes());
}

}  // namespace fsdpd

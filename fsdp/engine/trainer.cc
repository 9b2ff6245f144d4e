#include "fsdp/engine/trainer.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/time/clock.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/errno_status.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/comm/window.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/base_fingerprint.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/model/model.h"
#include "fsdp/optimizer/learning_rate.h"
#include "fsdp/plan/predict/cost.h"

namespace fsdpd {
namespace {

// Below this loss scale, an fp16 overflow is the fault of the step itself.
constexpr double kSmallestLossScale = 1;

// About 20 ms on an H100: longer steps are never bound by the host, so graphs would not help.
constexpr double kShortStepFlops = 1e13;

bool IsShort(const Plan& plan) {
  return StepFlops(plan.spec, plan.model) < kShortStepFlops * static_cast<double>(plan.spec.mesh.world());
}

at::Device DeviceOf(const TrainerOptions& options) {
  if (options.plan->spec.device == DeviceKind::kCpu) return at::kCPU;
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(options.device_index));
}

// On rank 0, if it compares the files with those of a checkpoint or writes one.
absl::StatusOr<std::vector<std::string>> TokenFilesOf(const TrainerOptions& options, const RankData& data) {
  const bool needed = options.restore != nullptr || options.plan->spec.checkpoint.saves();
  if (!needed || options.mesh.position().rank != 0) return std::vector<std::string>();
  absl::StatusOr<std::vector<std::string>> files = data.Traits();
  if (!files.ok()) return WithFileCause(v1::ErrorClass::KIND_DATA, /*by_all=*/true, files.status());
  return files;
}

absl::StatusOr<RankData> OpenData(const TrainerOptions& options, const TrainingState& start) {
  RankDataOptions data;
  data.spec = &options.plan->spec;
  data.rank = static_cast<int>(options.mesh.position().rank);
  data.origin = {start.step, start.samples, options.skipped_samples};
  data.store = options.store;
  data.held = Executor::kMaxInFlight;
  data.clock = options.clock;
  data.before_read = options.before_read;
  return RankData::Open(data);
}

absl::StatusOr<std::vector<std::unique_ptr<Unit>>> UnitsOf(const TrainerOptions& options, at::Device device) {
  const Plan& plan = *options.plan;
  if (options.model != nullptr) return MakeUserUnits(*options.model, plan.model, device);
  auto units = MakeModel(plan.spec, plan.model, device, options.package_dir);
  // Files on the node.
  const bool from_file = std::holds_alternative<PluginConfig>(plan.spec.model) ||
                         std::holds_alternative<PackageConfig>(plan.spec.model);
  if (units.ok() || !from_file) return units;
  if (IsDiskFull(units.status()))
    return WithNodeCause(v1::ErrorClass::KIND_DISK,
                         Annotated(units.status(),
                                   "package: no disk space to unpack it; free space, or start "
                                   "the agent with another --work-dir: "));
  return WithNodeFileCause(v1::ErrorClass::KIND_CONFIGURATION, units.status());
}

// Memory for the buffers of collectives. On GPUs with peers it is registered with all their communicators, so
// that copy engines can access it.
absl::StatusOr<Arena> MakeArena(const TrainerOptions& options, at::Device device) {
  const int64_t bytes = options.plan->program.arena_bytes;
  const Mesh& mesh = options.plan->spec.mesh;
  std::vector<Group> groups;
  if (mesh.SizeOf(Group::kShard) > 1) groups.push_back(Group::kShard);
  if (mesh.SizeOf(Group::kTensor) > 1) groups.push_back(Group::kReplica);
  if (mesh.SizeOf(Group::kExpert) > 1) groups.push_back(Group::kExpertShard);
  if (!device.is_cuda() || groups.empty()) return Arena::Make(bytes, device);
  FSDPD_ASSIGN_OR_RETURN(const std::shared_ptr<void> memory, MakeWindow(bytes, options.device_index));
  for (const Group group : groups) {
    for (const Role role : {Role::kGather, Role::kReduce})
      FSDPD_RETURN_IF_ERROR(options.mesh.Find(group, role)->Register(memory, bytes));
  }
  return Arena::Over(memory, bytes, device);
}

Lanes LanesOf(const TrainerOptions& options) {
  const Program& program = options.plan->program;
  if (options.run_ahead_on_cpu) return MakeRunAheadLanes(program);
  return MakeLanes(options.plan->spec.device, options.device_index, program);
}

std::vector<std::string> NamesOf(const Program& program, const Layout& layout) {
  std::vector<std::string> names;
  for (size_t i = 0; i < std::min(program.instructions.size(), kMaxFlightNames); ++i)
    names.push_back(NameOfInstruction(program, layout, static_cast<int>(i)));
  return names;
}

void Describe(const Plan& plan, FlightRecorder* flight) {
  std::vector<FlightLane> lanes;
  for (int i = 0; i < kLanes; ++i) {
    const auto lane = static_cast<LaneId>(i);
    // With tensor, context or expert parallelism, units communicate on the compute lane.
    const bool units = lane == LaneId::kCompute && !plan.layout.exchanged_groups().empty();
    lanes.push_back({NameOf(lane), RunsExchanges(lane) || units});
  }
  flight->Describe(lanes, NamesOf(plan.program, plan.layout), NamesOf(plan.evaluation, plan.layout));
}

// Parameters from the restores, and all others from the job's or the units' initial values.
absl::StatusOr<ShardedParams> InitialParams(const TrainerOptions& options,
                                            const std::vector<std::unique_ptr<Unit>>& units,
                                            const MeshPosition& position, at::Device device) {
  const Plan& plan = *options.plan;
  const auto source = [&](int unit, int param) {
    const bool of_base = plan.spec.lora.enabled() && !plan.model.units[unit].params[param].trainable;
    const Restore* restore = of_base ? options.base_model : options.restore;
    return restore != nullptr ? restore->Initial() : options.initial;
  };
  const auto numbers = [&](int unit, int param) -> std::optional<kernels::NormalNumbers> {
    if (source(unit, param)) return std::nullopt;
    return units[unit]->InitialNumbers(param, plan.spec.seed);
  };
  const auto initial = [&](int unit, int param, int64_t begin, int64_t elements) {
    if (const InitialValues from = source(unit, param)) return from(unit, param, begin, elements);
    return units[unit]->InitialValue(param, plan.spec.seed, begin, elements);
  };
  FSDPD_ASSIGN_OR_RETURN(ShardedParams params,
                         ShardedParams::Make(plan.spec, plan.layout, position, device, initial, numbers));
  for (const Restore* restore : std::initializer_list<const Restore*>{options.base_model, options.restore}) {
    if (restore != nullptr) FSDPD_RETURN_IF_ERROR(restore->Finish(position, params));
  }
  return params;
}

absl::Status IdentifyBaseModel(TrainerOptions* options, const MeshPosition& position,
                               const ShardedParams& params) {
  const Plan& plan = *options->plan;
  FSDPD_ASSIGN_OR_RETURN(options->label.base_model,
                         FingerprintOfBase(plan.layout, position, params, options->mesh.all()));
  options->label.base_model.path = options->base_model_path;
  if (options->restore == nullptr) return absl::OkStatus();
  return WithCause(v1::ErrorClass::KIND_CONFIGURATION, /*permanent=*/true,
                   options->restore->CheckBaseModel(options->label.base_model));
}

absl::Status AtStep(int64_t step, const absl::Status& status) {
  if (status.ok()) return status;
  return Annotated(status, absl::StrCat("step ", step, ": "));
}

}  // namespace

// A rank that fails here may leave others in a collective, and groups are destroyed collectively unless
// aborted.
absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Make(TrainerOptions options) {
  const auto on_failed = options.on_failed;
  std::unique_ptr<Trainer> trainer;
  const absl::Status status = Initialize(&options, &trainer);
  if (status.ok()) return trainer;
  if (on_failed) on_failed(status);
  trainer != nullptr ? trainer->Abort() : options.mesh.Abort();
  return status;
}

// Once `*made` is set, it owns the options including the communicators. If a later part fails, it outlives
// this call, so the caller can report the error before peers lose their connection.
absl::Status Trainer::Initialize(TrainerOptions* given, std::unique_ptr<Trainer>* made) {
  TrainerOptions& options = *given;
  const Plan& plan = *options.plan;
  const MeshPosition position = options.mesh.position();
  FSDPD_CHECK(plan.accepted() && options.stop != nullptr);
  FSDPD_CHECK(position.mesh == plan.spec.mesh);
  const at::Device device = DeviceOf(options);
  const TrainingState start = options.restore != nullptr ? options.restore->state() : TrainingState();
  FSDPD_ASSIGN_OR_RETURN(RankData data, OpenData(options, start));
  FSDPD_ASSIGN_OR_RETURN(options.label.data, TokenFilesOf(options, data));
  FSDPD_ASSIGN_OR_RETURN(Arena arena, MakeArena(options, device));
  FSDPD_ASSIGN_OR_RETURN(auto units, UnitsOf(options, device));
  FSDPD_ASSIGN_OR_RETURN(ShardedParams params, InitialParams(options, units, position, device));
  if (plan.spec.lora.enabled()) FSDPD_RETURN_IF_ERROR(IdentifyBaseModel(&options, position, params));
  options.restore = nullptr;
  options.base_model = nullptr;
  std::unique_ptr<HostArenaFuture> snapshot_memory = std::move(options.snapshot_memory);
  made->reset(new Trainer(std::move(options), std::move(data), std::move(arena), std::move(params)));
  Trainer* const trainer = made->get();
  trainer->units_ = std::move(units);
  trainer->state_ = start;
  FSDPD_RETURN_IF_ERROR(trainer->MakeSaver(std::move(snapshot_memory)));
  if (plan.spec.offloaded_layers > 0) {
    FSDPD_ASSIGN_OR_RETURN(trainer->offloaded_, OffloadedActivations::Make(plan, device));
  }
  trainer->MakeReporter();
  OperationParts parts;
  parts.plan = &plan;
  parts.device = device;
  parts.units = &trainer->units_;
  parts.params = &trainer->params_;
  parts.arena = &trainer->arena_;
  parts.mesh = &trainer->options_.mesh;
  parts.start = start;
  parts.snapshot = trainer->snapshot_.get();
  parts.offloaded = trainer->offloaded_.get();
  FlightRecorder* const flight = trainer->options_.flight;
  if (flight != nullptr) Describe(plan, flight);
  FSDPD_ASSIGN_OR_RETURN(trainer->executor_,
                         Executor::Make(parts, LanesOf(trainer->options_), trainer->options_.stop, flight));
  trainer->reporter_->Watch(trainer->executor_.get());
  if (plan.spec.graphs.value_or(IsShort(plan))) trainer->executor_->UseGraphs(trainer->options_.device_index);
  return absl::OkStatus();
}

Trainer::Trainer(TrainerOptions options, RankData data, Arena arena, ShardedParams params)
    : options_(std::move(options)),
      data_(std::move(data)),
      arena_(std::move(arena)),
      params_(std::move(params)) {}

void Trainer::MakeReporter() {
  StepReporter::Options of;
  of.plan = options_.plan;
  of.mesh = &options_.mesh;
  of.device_index = options_.device_index;
  of.own_process = options_.own_process;
  of.traces = options_.traces;
  of.on_timeline = options_.on_timeline;
  reporter_ = std::make_unique<StepReporter>(std::move(of), &arena_, params_, state_.step);
}

absl::Status Trainer::MakeSaver(std::unique_ptr<HostArenaFuture> memory) {
  if (!spec().checkpoint.saves()) return absl::OkStatus();
  const MeshPosition position = options_.mesh.position();
  FSDPD_ASSIGN_OR_RETURN(snapshot_,
                         Snapshot::Make(spec(), options_.plan->layout, position, std::move(memory)));
  Saver::Options saver;
  saver.plan = options_.plan;
  saver.position = position;
  saver.store = options_.store;
  saver.store_may_be_unreachable = options_.store_may_be_unreachable;
  saver.label = options_.label;
  saver.directory = options_.directory;
  saver.stop = options_.stop;
  saver.on_saved = options_.on_saved;
  FSDPD_CHECK(saver.directory != nullptr);
  saver_ = std::make_unique<Saver>(std::move(saver), snapshot_.get());
  return absl::OkStatus();
}

void Trainer::Abort() { options_.mesh.Abort(); }

void Trainer::AwaitOthers() { options_.mesh.all()->Barrier().IgnoreError(); }

absl::Status Trainer::Run(const OnStep& on_step) {
  const absl::Status status = RunSteps(on_step);
  if (status.ok()) return status;
  // All ranks end at the same step: let the checkpoint before it complete, since the job rewinds to it.
  if (saver_ != nullptr && BadStepOf(status).has_value()) AwaitLastSave().IgnoreError();
  executor_->Abandon();  // A step may have been submitted ahead.
  // A rank that was stopped may first notice that its peers have left: report the stop, not a failure.
  const std::string where = open_.empty() ? absl::StrFormat("after step %d", state_.step)
                                          : absl::StrFormat("at step %d", open_.front().inputs.step);
  if (options_.stop->load()) return absl::CancelledError(absl::StrCat("stopped ", where));
  if (!leave_requested() || absl::IsCancelled(status)) return status;
  return absl::CancelledError(absl::StrFormat("left %s: %s", where, status.message()));
}

bool Trainer::RunsAhead() const { return spec().device == DeviceKind::kCuda || options_.run_ahead_on_cpu; }

absl::Status Trainer::RunSteps(const OnStep& on_step) {
  schedule_.emplace(&spec(), /*keeps_time=*/options_.mesh.position().rank == 0, state_.step,
                    options_.clock->Now());
  for (int64_t step = state_.step + 1; step <= spec().steps; ++step) {
    FSDPD_RETURN_IF_ERROR(LeaveIfDue(step, on_step));
    const bool saves = schedule_->Saves(step);
    if (saves) FSDPD_RETURN_IF_ERROR(FreeSnapshot(on_step));
    FSDPD_RETURN_IF_ERROR(Submit(step, saves));
    const bool drains = !RunsAhead() || step == spec().steps || EvaluatesAfter(step);
    while (open_.size() > (drains ? 0 : Executor::kMaxInFlight - 1)) {
      FSDPD_RETURN_IF_ERROR(Finish(on_step));
    }
  }
  const PhaseScope saving(options_.flight, FlightPhase::kSaving);
  return saver_ != nullptr ? saver_->Finish() : absl::OkStatus();
}

// Leaves once the newest checkpoint includes the last step, or if there is no time for a newer one. A step
// that only some ranks have submitted fails when the others leave.
absl::Status Trainer::LeaveIfDue(int64_t next_step, const OnStep& on_step) {
  if (!leave_requested()) return absl::OkStatus();
  const int64_t done = next_step - 1;
  if (schedule_->newest() < done) return LeaveUnlessItFits(next_step);
  while (!open_.empty()) FSDPD_RETURN_IF_ERROR(Finish(on_step));
  if (schedule_->newest() == schedule_->start()) return absl::CancelledError("left before the first step");
  const absl::Status saved = AwaitLastSave();
  if (saved.ok()) return absl::CancelledError(absl::StrFormat("left after step %d, which is saved", done));
  return absl::CancelledError(
      absl::StrFormat("left after step %d, whose checkpoint was not written: %s", done, saved.message()));
}

absl::Status Trainer::LeaveUnlessItFits(int64_t next_step) {
  const int64_t done = next_step - 1;
  if (saver_ == nullptr) return absl::CancelledError(absl::StrFormat("left after step %d", done));
  if (schedule_->Saves(next_step)) return absl::OkStatus();  // Agreed on by all ranks.
  SaveEstimate estimate;
  estimate.last_seconds = saver_->LastSeconds();
  estimate.bytes = snapshot_->bytes();
  estimate.step_seconds = step_seconds_;
  estimate.steps = schedule_->StepsToSave(next_step, RunsAhead() ? Executor::kMaxInFlight + 1 : 2);
  const absl::Duration needed = TimeToSave(estimate), left = options_.departure->remaining();
  if (needed <= left) return absl::OkStatus();
  AwaitLastSave().IgnoreError();  // A save in progress may complete in time.
  return absl::CancelledError(
      absl::StrFormat("left after step %d without saving it: not enough time (got %.1f s, want about %.1f s)",
                      done, absl::ToDoubleSeconds(left), absl::ToDoubleSeconds(needed)));
}

absl::Status Trainer::AwaitLastSave() const {
  const PhaseScope saving(options_.flight, FlightPhase::kSaving);
  return saver_->AwaitLast();
}

// The snapshot may belong to an open step, or is being written.
absl::Status Trainer::FreeSnapshot(const OnStep& on_step) {
  const auto saves = [](const OpenStep& open) { return open.inputs.saves; };
  while (std::any_of(open_.begin(), open_.end(), saves)) FSDPD_RETURN_IF_ERROR(Finish(on_step));
  const PhaseScope saving(options_.flight, FlightPhase::kSaving);
  saver_->AwaitSnapshotBuffer();
  return absl::OkStatus();
}

absl::Status Trainer::Submit(int64_t step, bool saves) {
  const absl::Time now = options_.clock->Now();
  StepInputs inputs;
  inputs.step = step;
  inputs.learning_rate = LearningRate(spec().schedule, spec().optimizer.lr, spec().steps, step);
  inputs.saves = saves;
  inputs.requests_save = saver_ != nullptr && (leave_requested() || schedule_->RequestsSave(now));
  schedule_->Submitted(step, saves, inputs.requests_save, now);
  open_.emplace_back().inputs = inputs;
  if (step == schedule_->start() + 1) open_.back().warnings = data_.Warnings();
  absl::StatusOr<StepBatches> batches = NextBatches(data_.training.get(), step);
  if (!batches.ok()) return AtStep(step, batches.status());
  open_.back().batches = *std::move(batches);
  open_.back().reports_timeline = reporter_->TakesTimeline(now);
  return SubmitOpen(&open_.back());
}

absl::Status Trainer::SubmitOpen(OpenStep* step) {
  reporter_->BeginStep(open_.front().inputs.step, open_.back().inputs.step);
  FSDPD_RETURN_IF_ERROR(executor_->Submit(step->inputs, step->batches.batches()));
  reporter_->EndStep(step);
  return absl::OkStatus();
}

// Replays the oldest open step and all after it, which no rank has applied. Their batches are still
// available, so only time is lost.
absl::Status Trainer::ReplayOpenSteps() {
  for (size_t i = 1; i < open_.size(); ++i) FSDPD_RETURN_IF_ERROR(executor_->Collect().status());
  open_.front().warnings.push_back(GrowExpertCapacity());
  reporter_->Replay();
  for (OpenStep& open : open_) FSDPD_RETURN_IF_ERROR(SubmitOpen(&open));
  return absl::OkStatus();
}

std::string Trainer::GrowExpertCapacity() {
  const double before = std::exchange(expert_capacity_, kExpertCapacityGrowth * expert_capacity_);
  const auto ranks = static_cast<double>(spec().mesh.size(Axis::kExpert));
  FSDPD_CHECK(before < ranks);
  executor_->GrowExpertCapacity(expert_capacity_);
  return absl::StrFormat(
      "expert capacity grew from %.4g to %.4g times even routing and the batch was replayed: memory use is "
      "above the plan",
      before, std::min(expert_capacity_, ranks));
}

// Polled while waiting for data.
absl::Status Trainer::Interrupted() const {
  if (options_.stop->load()) return absl::CancelledError("asked to stop");
  return options_.mesh.Health();
}

absl::Status Trainer::Finish(const OnStep& on_step) {
  OpenStep& open = open_.front();
  const int64_t step = open.inputs.step;
  FSDPD_ASSIGN_OR_RETURN(const StepResult result, executor_->Collect());
  if (result.expert_overflow) return ReplayOpenSteps();
  const std::optional<v1::BadStep> bad = FindBadStep(open, result);
  if (bad.has_value()) FSDPD_RETURN_IF_ERROR(AtStep(step, TakeBadStep(spec(), *bad, &state_)));
  UpdateState(result);
  schedule_->Collected(step, result.save_requested);
  // A checkpoint that commits during the evaluation would lose the evaluation if the rank is killed then: the
  // next attempt starts after this step. A rank that must leave saves first.
  bool writes = open.inputs.saves;
  const auto write = [&] {
    if (std::exchange(writes, false)) saver_->Write(state_);
  };
  if (!EvaluatesAfter(step)) write();
  reporter_->WriteTraces(open);
  v1::StepReport report = reporter_->Report(open, result, expert_capacity_);
  step_seconds_ = report.step_seconds();
  if (bad.has_value()) *report.mutable_bad_step() = *bad;
  if (EvaluatesAfter(step)) {
    const auto before_round = [&] {
      if (leave_requested()) write();
    };
    FSDPD_RETURN_IF_ERROR(AtStep(step, Evaluate(before_round, report.mutable_evaluation(), &open.warnings)));
  }
  reporter_->AddWarnings(open, result, &report);
  // After the evaluation, which counts for the pace by which this rank is judged.
  report.set_unix_nanos(absl::GetCurrentTimeNanos());
  FSDPD_RETURN_IF_ERROR(AtStep(step, on_step(report)));
  write();
  FSDPD_RETURN_IF_ERROR(AtStep(step, reporter_->SendTimeline(open, report)));
  open_.pop_front();
  return absl::OkStatus();
}

void Trainer::UpdateState(const StepResult& result) {
  ++state_.step;
  state_.samples = data_.batches->SamplesOf(state_.step).end;
  state_.steps_taken += result.skipped() ? 0 : 1;
  RecordNorm(spec(), result.skipped() ? std::nullopt : std::optional(static_cast<float>(result.grad_norm)),
             &state_);
  state_.loss_scale = result.next_loss_scale;
  state_.good_steps = result.good_steps;
}

bool Trainer::EvaluatesAfter(int64_t step) const {
  return data_.evaluation != nullptr && (step % spec().evaluation.every_steps == 0 || step == spec().steps);
}

absl::StatusOr<StepBatches> Trainer::NextBatches(BatchReader* reader, int64_t number) {
  const PhaseScope reading(options_.flight, FlightPhase::kReading);
  return reader->Next(number, [this] { return Interrupted(); });
}

absl::Status Trainer::Evaluate(const std::function<void()>& before_round, v1::StepReport::Evaluation* report,
                               std::vector<std::string>* warnings) {
  const absl::Time begin = absl::Now();
  StepResult total;
  for (int64_t round = 0; round < data_.rounds; ++round) {
    before_round();
    FSDPD_ASSIGN_OR_RETURN(const StepBatches read, NextBatches(data_.evaluation.get(), ++rounds_done_));
    const auto evaluate = [&] { return executor_->Evaluate(options_.plan->evaluation, read.batches()[0]); };
    FSDPD_ASSIGN_OR_RETURN(StepResult result, evaluate());
    while (result.expert_overflow) {
      warnings->push_back(absl::StrCat("evaluation: ", GrowExpertCapacity()));
      FSDPD_ASSIGN_OR_RETURN(result, evaluate());
    }
    total.loss_sum += result.loss_sum;
    total.counted += result.counted;
  }
  report->set_loss(WithoutNanSign(total.loss()));
  report->set_tokens(total.counted);
  report->set_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  return absl::OkStatus();
}

// Also nullopt for a step that is skipped because the loss scale was lowered.
std::optional<v1::BadStep> Trainer::FindBadStep(const OpenStep& open, const StepResult& result) const {
  const bool left_to_scale = spec().scales_loss() && result.loss_scale >= kSmallestLossScale;
  const bool not_finite = result.not_finite && !left_to_scale;
  if (!not_finite && !result.spike) return std::nullopt;
  v1::BadStep bad;
  bad.set_step(open.inputs.step);
  bad.set_kind(not_finite ? v1::BAD_STEP_KIND_NONFINITE : v1::BAD_STEP_KIND_SPIKE);
  bad.set_loss(WithoutNanSign(result.loss()));
  bad.set_grad_norm(WithoutNanSign(result.grad_norm));
  if (!not_finite) bad.set_threshold(result.spike_threshold);
  const SampleRange samples = data_.batches->SamplesOf(open.inputs.step);
  bad.set_first_sample(samples.first);
  bad.set_end_sample(samples.end);
  return bad;
}

}  // namespace fsdpd

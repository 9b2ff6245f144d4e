#include "fsdp/engine/rank_run.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <absl/time/clock.h>

#include <optional>
#include <utility>

#include "base/check.h"
#include "base/rank/flight_recorder.h"
#include "base/text.h"
#include "fsdp/checkpoint/job/export.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/engine/checkpoint_choice.h"
#include "fsdp/engine/directory_lock.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/engine/operations/snapshot.h"
#include "fsdp/engine/restore.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/deterministic.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxErrorBytes = 4096;

// Adds the skipped samples to the plan's fingerprint: ranks that skip different samples must not train
// together.
std::vector<std::string> FingerprintOf(const RankRun& run) {
  std::vector<std::string> lines = FingerprintOf(*run.plan);
  for (const SampleRange& range : run.skipped_samples)
    lines.push_back(absl::StrCat("samples ", range.first, " to ", range.end - 1, " are passed over"));
  return lines;
}

absl::StatusOr<ConnectedMesh> Connect(const RankRun& run) {
  const Spec& spec = run.plan->spec;
  CommunicatorOptions options;
  options.device = spec.device;
  options.rank = run.rank;
  options.size = static_cast<int>(spec.mesh.world());
  options.device_index = run.device_index;
  options.rendezvous_timeout = run.timeout;
  if (!run.bind_address.empty()) options.bind_address = run.bind_address;
  return ConnectMesh(options, spec.mesh, run.plan->full_layout().exchanged_groups(), run.store);
}

DirectoryLock::Options DirectoryOf(const RankRun& run) {
  DirectoryLock::Options options;
  options.dir = run.plan->spec.checkpoint.dir;
  options.job = run.label.job;
  options.rank = run.rank;
  options.store = run.store;
  options.stop = run.stop;
  options.has_checkpoints = run.known_step > 0;
  options.clock = run.clock;
  return options;
}

// Where an attempt starts.
struct Start {
  std::unique_ptr<Restore> restore;     // Null: fresh start.
  std::unique_ptr<Restore> base_model;  // Of a LoRA job. Null: initial values.
  std::string base_model_path = {};
  bool has_source = false;  // One of these was set.
  v1::RestoredCheckpoint restored;
  std::vector<std::string> set_aside = {};  // As in ChosenCheckpoint.
};

// Files without checksums are compared between ranks.
absl::Status AgreeOnStart(const RankRun& run, Store* store, const std::string& path,
                          const absl::StatusOr<std::unique_ptr<Restore>>& restore) {
  OpenedFiles opened;
  opened.key = "restore/files";
  opened.what = absl::StrCat("files of ", path);
  opened.kind = v1::ErrorClass::KIND_CONFIGURATION;
  opened.traits =
      restore.ok() ? absl::StatusOr<std::vector<std::string>>((*restore)->traits()) : restore.status();
  return AgreeOnFiles(store, run.rank, static_cast<int>(run.plan->spec.mesh.world()), opened,
                      kLongestFileWait);
}

// Renames the field that an error names, and keeps its marks.
absl::Status OfBaseModel(const absl::Status& status) {
  constexpr absl::string_view kLoad = "checkpoint.load:";
  absl::string_view why = status.message();
  const bool named = absl::ConsumePrefix(&why, kLoad);
  absl::Status renamed(status.code(), absl::StrCat("train.lora.base_model:", named ? "" : " ", why));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { renamed.SetPayload(type, payload); });
  return renamed;
}

// Opens the frozen weights of a LoRA job, in any format that checkpoint.load accepts. A job that resumes
// reads the checkpoint that it started from, even if its directory has a newer one.
absl::Status FindBaseModel(const RankRun& run, bool own, Start* start) {
  Spec spec = run.plan->spec;
  const std::string recorded = own ? start->restore->base_model_path() : "";
  spec.checkpoint = {};
  spec.checkpoint.load = recorded.empty() ? spec.lora.base_model : recorded;
  spec.checkpoint.load_optimizer = false;
  PrefixStore store(run.store, "base_model/");
  const absl::StatusOr<std::optional<ChosenCheckpoint>> chosen =
      ChooseCheckpoint(spec, /*job=*/"", /*known_step=*/0, &store, run.rank);
  if (!chosen.ok())
    return WithFileCause(v1::ErrorClass::KIND_CONFIGURATION, /*by_all=*/false, OfBaseModel(chosen.status()));
  FSDPD_CHECK(chosen->has_value());
  start->base_model_path = (*chosen)->path;
  absl::StatusOr<std::unique_ptr<Restore>> base = Restore::OpenBaseModel(*run.plan, start->base_model_path);
  FSDPD_RETURN_IF_ERROR(AgreeOnStart(run, &store, start->base_model_path, base));
  start->base_model = *std::move(base);
  for (const std::string& skipped : (*chosen)->skipped_checkpoints)
    start->restored.add_skipped_checkpoints(absl::StrCat("of the base model: ", skipped));
  if (start->restore == nullptr) start->restored.set_path(start->base_model_path);
  return absl::OkStatus();
}

// `own`: set if the checkpoint is the job's.
absl::StatusOr<Start> FindRestore(const RankRun& run, bool* own) {
  const CheckpointConfig& checkpoint = run.plan->spec.checkpoint;
  Start start;
  if (checkpoint.dir.empty() && checkpoint.load.empty()) return start;
  constexpr auto kKind = v1::ErrorClass::KIND_CONFIGURATION;
  const absl::StatusOr<std::optional<ChosenCheckpoint>> named =
      ChooseCheckpoint(run.plan->spec, run.label.job, run.known_step, run.store, run.rank);
  // Rank 0's view of the directories. FAILED_PRECONDITION is permanent: another run's checkpoints stay until
  // the user moves them.
  if (!named.ok())
    return WithFileCause(kKind, /*by_all=*/absl::IsFailedPrecondition(named.status()), named.status());
  const std::optional<ChosenCheckpoint>& chosen = *named;
  if (!chosen.has_value()) return start;
  *own = chosen->own;
  absl::StatusOr<std::unique_ptr<Restore>> restore = Restore::Open(*run.plan, chosen->path, chosen->own);
  // The job's own checkpoints were verified with checksums, so all ranks read the same.
  FSDPD_RETURN_IF_ERROR(chosen->own ? WithFileCause(kKind, /*by_all=*/true, restore.status())
                                    : AgreeOnStart(run, run.store, chosen->path, restore));
  start.restore = *std::move(restore);
  start.restored.set_step(start.restore->state().step);
  start.restored.set_path(chosen->path);
  start.set_aside = chosen->set_aside;
  start.restored.mutable_skipped_checkpoints()->Assign(chosen->skipped_checkpoints.begin(),
                                                       chosen->skipped_checkpoints.end());
  return start;
}

// `directory`: null if the job saves nothing. It is cleared even if the base model cannot be read.
absl::StatusOr<Start> FindStart(const RankRun& run, DirectoryLock* directory) {
  bool own = false;
  FSDPD_ASSIGN_OR_RETURN(Start start, FindRestore(run, &own));
  if (directory != nullptr && run.rank == 0) FSDPD_RETURN_IF_ERROR(directory->Clear(start.set_aside));
  if (!run.plan->spec.lora.base_model.empty()) FSDPD_RETURN_IF_ERROR(FindBaseModel(run, own, &start));
  return start;
}

// A failed export is reported and does not fail the job: the checkpoint exists.
// `base_model`: the checkpoint that the frozen weights of a LoRA job were read from.
void Export(const RankRun& run, const DirectoryLock& directory, const std::string& base_model) {
  const Spec& spec = run.plan->spec;
  const absl::Time begin = absl::Now();
  JobExport what;
  what.job = run.label.job;
  what.attempt = run.label.attempt;
  what.checkpoint = CheckpointPath(spec.checkpoint.dir, spec.steps);
  what.package_dir = run.package_dir;
  what.base_model = base_model;
  what.stopped = [&run] { return run.stop->load(); };
  what.may_commit = [&directory] { return directory.CheckHeld(); };
  const absl::StatusOr<int64_t> bytes = ExportJob(spec, what);
  v1::SavedCheckpoint exported;
  exported.set_format(spec.checkpoint.export_format);
  exported.set_step(spec.steps);
  exported.set_path(ExportPath(spec.checkpoint));
  exported.set_seconds(absl::ToDoubleSeconds(absl::Now() - begin));
  exported.set_unix_nanos(absl::GetCurrentTimeNanos());
  if (bytes.ok()) {
    exported.set_bytes(*bytes);
  } else {
    exported.set_error(CutText(bytes.status().message(), kMaxErrorBytes));
  }
  if (run.on_saved) run.on_saved(exported);
}

// A GPU without FP8 is blamed on the configuration, but another node may have one with it.
absl::Status TakeDevice(const Spec& spec, int index) {
  FSDPD_RETURN_IF_ERROR(WithCause(v1::ErrorClass::KIND_NODE, /*permanent=*/false, SetCudaDevice(index)));
  if (!spec.precision.fp8) return absl::OkStatus();
  return WithNodeCause(v1::ErrorClass::KIND_CONFIGURATION, CheckMultipliesFp8(index));
}

absl::Status Train(const RankRun& run, Trainer* trainer, const DirectoryLock* directory, const Start& start) {
  if (run.on_made) FSDPD_RETURN_IF_ERROR(run.on_made(trainer, start.has_source ? &start.restored : nullptr));
  const PhaseScope training(run.flight, FlightPhase::kTraining);
  FSDPD_RETURN_IF_ERROR(trainer->Run(
      [&](const v1::StepReport& report) { return run.on_step ? run.on_step(report) : absl::OkStatus(); }));
  if (run.on_trained) FSDPD_RETURN_IF_ERROR(run.on_trained(trainer));
  const PhaseScope ending(run.flight, FlightPhase::kEnding);
  trainer->AwaitOthers();  // They may still read what this rank sent last.
  // The directory is still locked, and no other rank waits for the export.
  if (run.rank == 0 && !run.plan->spec.checkpoint.export_format.empty())
    Export(run, *directory, start.base_model_path);
  return absl::OkStatus();
}

// Options that the trainer takes from the run unchanged.
TrainerOptions OptionsOf(RankRun* run) {
  TrainerOptions options;
  options.plan = run->plan;
  options.device_index = run->device_index;
  options.stop = run->stop;
  options.departure = run->departure;
  options.clock = run->clock;
  options.initial = std::move(run->initial);
  options.model = run->model;
  options.package_dir = run->package_dir;
  options.traces = run->traces;
  options.flight = run->flight;
  options.run_ahead_on_cpu = run->run_ahead_on_cpu;
  options.own_process = run->own_process;
  options.skipped_samples = std::move(run->skipped_samples);
  options.store = run->store;
  options.store_may_be_unreachable = run->store_may_be_unreachable;
  options.label = run->label;
  options.on_saved = run->on_saved;
  options.on_failed = run->on_failed;
  if (run->rank == 0) options.on_timeline = run->on_timeline;
  return options;
}

}  // namespace

absl::Status RunRank(RankRun run) {
  // With pipeline parallelism: the plan of this rank's stage.
  const Plan plan = PlanOfRank(*run.plan, run.rank);
  run.plan = &plan;
  std::optional<Deterministic> deterministic;
  if (plan.spec.deterministic) deterministic.emplace();
  const PhaseScope loading(run.flight, FlightPhase::kLoading);
  // Owned from the start: a rank that fails early disconnects from its peers when it returns.
  ConnectedMesh mesh;
  if (run.local != nullptr) mesh = std::move(*run.local);
  if (plan.spec.device == DeviceKind::kCuda) FSDPD_RETURN_IF_ERROR(TakeDevice(plan.spec, run.device_index));
  FSDPD_RETURN_IF_ERROR(AgreeOnProgram(run.store, run.rank, static_cast<int>(plan.spec.mesh.world()),
                                       FingerprintOf(run), run.timeout));
  const std::atomic<bool> never{false};
  if (run.stop == nullptr) run.stop = &never;
  // Before checkpoints are read: an earlier attempt may still write.
  std::unique_ptr<DirectoryLock> directory;
  std::unique_ptr<HostArenaFuture> snapshot_memory;
  if (plan.spec.checkpoint.saves()) {
    FSDPD_ASSIGN_OR_RETURN(directory, DirectoryLock::Take(DirectoryOf(run)));
    // After locking: before that, an earlier attempt on this node may still use as much memory. Populated
    // while the checkpoint is read.
    snapshot_memory = Snapshot::Allocate(plan.spec, plan.layout, {plan.spec.mesh, run.rank});
  }
  const absl::Time begin = run.clock->Now();  // After the wait for the lock, which reads nothing.
  FSDPD_ASSIGN_OR_RETURN(Start start, FindStart(run, directory.get()));
  if (run.local == nullptr) {
    FSDPD_ASSIGN_OR_RETURN(mesh, Connect(run));
  }
  TrainerOptions options = OptionsOf(&run);
  options.mesh = std::move(mesh);
  options.restore = start.restore.get();
  options.base_model = start.base_model.get();
  options.base_model_path = start.base_model_path;
  options.directory = directory.get();
  options.snapshot_memory = std::move(snapshot_memory);
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer, Trainer::Make(std::move(options)));
  start.restored.set_seconds(absl::ToDoubleSeconds(run.clock->Now() - begin));
  if (start.restore != nullptr) start.restore->CompareData(trainer->token_files());
  for (const Restore* source : {start.restore.get(), start.base_model.get()}) {
    if (source == nullptr) continue;
    start.has_source = true;
    for (std::string& note : source->notes()) start.restored.add_notes(std::move(note));
  }
  // Open files would keep the disk space of a checkpoint that is removed later.
  start.restore.reset();
  start.base_model.reset();
  const absl::Status status = Train(run, trainer.get(), directory.get(), start);
  if (!status.ok()) {
    if (run.on_failed) run.on_failed(status);
    trainer->Abort();
  }
  if (run.on_leaving) run.on_leaving();
  return status;
}

}  // namespace fsdpd

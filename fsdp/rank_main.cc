// fsdpd-rank: trains one device's part of one job. Started only by fsdpd-agent; rank.proto defines its
// interface.
//
// Exit codes: 0 success, 1 error (see RankFinished.error and the log), 2 invalid usage, 3 left because
// another rank of the job had failed, 143 stopped by SIGTERM or by its agent's order to leave. 3, and 143
// after a SIGTERM, follow within half a second, whatever the rank is blocked in (stop_signal.h); a rank that
// is ordered to leave saves first if there is time (engine/departure.h). If its agent disappears, the rank
// exits with 1 immediately in any state: it must not outlive its agent. Instead of a job, an agent can
// request a device measurement (RankLaunch.preflight); without an agent, the program measures the device for
// fsdpctl (--profile-device, fsdp/profile).
#include <ATen/Parallel.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <fcntl.h>
#include <google/protobuf/util/json_util.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <thread>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/log.h"
#include "base/process/open_files.h"
#include "base/process/uncaught.h"
#include "base/rank/exit_code.h"
#include "base/rank/flight_recorder.h"
#include "base/rank/rank_cores.h"
#include "base/version.h"
#include "fsdp/comm/peer_lost.h"
#include "fsdp/engine/agreement.h"
#include "fsdp/engine/bad_step.h"
#include "fsdp/engine/departure.h"
#include "fsdp/engine/error_cause.h"
#include "fsdp/engine/rank_data.h"
#include "fsdp/engine/rank_run.h"
#include "fsdp/memory/host_caching_allocator.h"
#include "fsdp/model/plugin.h"
#include "fsdp/profile/preflight.h"
#include "fsdp/profile/profile_command.h"
#include "fsdp/rank/near_cores.h"
#include "fsdp/rank/rank_channel.h"
#include "fsdp/rank/rank_log.h"
#include "fsdp/rank/stop_signal.h"
#include "fsdp/telemetry/step_traces.h"
#include "fsdp/torch/cuda_device.h"
#include "fsdp/torch/torch_status.h"

namespace fsdpd {
namespace {

constexpr int kAgentFd = 3;

// Ranks of one attempt start within seconds of each other, but a cold page cache on a node may take minutes.
constexpr absl::Duration kRendezvousTimeout = absl::Minutes(5);

// At the end of a job: a slower disk loses the trace.
constexpr absl::Duration kLongestTraceWait = absl::Seconds(10);

absl::StatusOr<Plan> PlanLaunch(const v1::RankLaunch& launch) {
  absl::StatusOr<Plan> plan = AcceptedPlan(launch.spec());
  if (!plan.ok()) {
    const absl::string_view violations = plan.status().message();  // One per line.
    return absl::InvalidArgumentError(
        absl::StrContains(violations, '\n')
            ? absl::StrCat("spec was rejected:\n  ", absl::StrReplaceAll(violations, {{"\n", "\n  "}}))
            : absl::StrCat("spec was rejected: ", violations));
  }
  const int64_t world = plan->spec.mesh.world();
  if (world == launch.world_size() && launch.rank() >= 0 && launch.rank() < world)
    return PlanOfRank(*plan, launch.rank());
  return absl::InvalidArgumentError(absl::StrFormat("rank is %d of %d, but the spec has %d ranks",
                                                    launch.rank(), launch.world_size(), world));
}

// Call it before LibTorch starts threads, since these inherit the affinity.
void RunNearGpu(int device) {
  const char* const asked = std::getenv(kRankCoresVariable);
  if (asked != nullptr && std::strcmp(asked, kAllCores) == 0)
    return LogInfo("CPU affinity not set reason=disabled by the agent");
  const absl::StatusOr<std::string> bus_id = CudaBusId(device);
  if (!bus_id.ok()) return;  // Reported later, where the device is needed.
  const NearCores near = FindNearCores("/sys", *bus_id, AllowedCores());
  if (near.cores.empty()) return LogInfo("CPU affinity not set reason=%s", near.why_not);
  const absl::Status bound = RunOn(near.cores);
  if (!bound.ok()) return LogWarning("CPU affinity not set reason=%s", bound.message());
  LogInfo("set CPU affinity cores=%d numa_node=%d gpu=%s", near.cores.size(), near.node, *bus_id);
}

// Call it before LibTorch allocates anything.
void PrepareHost(DeviceKind kind, int device) {
  if (kind == DeviceKind::kCuda) return RunNearGpu(device);
  InstallHostCachingAllocator();
  // Ranks share the cores of a node, so the default is one thread each.
  if (std::getenv("OMP_NUM_THREADS") == nullptr) at::set_num_threads(1);
}

absl::Status SendStarted(const Plan& plan, const Trainer& trainer, const v1::RestoredCheckpoint* restored,
                         RankChannel* channel) {
  v1::RankToAgent message;
  v1::RankStarted* const started = message.mutable_started();
  if (restored != nullptr) *started->mutable_restored() = *restored;
  *started->mutable_memory_plan() = ToProto(plan.memory);
  started->set_steps(plan.spec.steps);
  started->set_epoch_samples(trainer.samples_per_epoch());
  return channel->Send(message);
}

// `by_all`: all ranks reject the plan, because the data has too few steps. Otherwise this node runs another
// version than the coordinator, which has accepted the spec.
absl::StatusOr<Plan> AcceptedPlan(const v1::RankLaunch& launch, bool by_all) {
  absl::StatusOr<Plan> plan = PlanLaunch(launch);
  if (plan.ok()) return plan;
  constexpr auto kKind = v1::ErrorClass::KIND_CONFIGURATION;
  return by_all ? WithFileCause(kKind, /*by_all=*/true, plan.status()) : WithNodeCause(kKind, plan.status());
}

// Replaces train.epochs, which only the nodes' files translate into steps, by train.steps.
absl::StatusOr<v1::RankLaunch> WithSteps(v1::RankLaunch launch, Store* store) {
  v1::Train* const train = launch.mutable_spec()->mutable_train();
  if (!train->has_epochs()) return launch;
  FSDPD_ASSIGN_OR_RETURN(const Plan plan, AcceptedPlan(launch, /*by_all=*/false));
  const bool one_node = launch.spec().resources().nodes() == 1;
  FSDPD_ASSIGN_OR_RETURN(const int64_t steps,
                         AgreeOnSteps(store, launch.rank(), plan.spec, train->epochs(), one_node));
  LogInfo("computed steps epochs=%g steps=%d", train->epochs(), steps);
  train->clear_epochs();
  train->set_steps(steps);
  return launch;
}

std::string JsonOf(const v1::JobSpec& spec) {
  std::string json;
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(spec, &json, options).ok()) json.clear();
  return json;
}

void LogEnd(const absl::Status& status) {
  // Without payloads, which are binary.
  const std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  for (const absl::string_view line : absl::StrSplit(text, '\n')) Log(Severity::kError, line);
}

void SendFinished(const absl::Status& status, RankChannel* channel) {
  v1::RankToAgent message;
  v1::RankFinished* const finished = message.mutable_finished();
  if (!status.ok()) finished->set_error(std::string(status.message()));
  if (const auto bad = BadStepOf(status)) *finished->mutable_bad_step() = *bad;
  if (const auto fault = CauseOf(status)) *finished->mutable_error_class() = *fault;
  channel->Close();
  channel->Send(message).IgnoreError();  // The agent may be gone; the exit code has the same information.
  std::fflush(nullptr);
}

// A lost peer may have been stopped, with this rank's own stop still on the way, or killed, with its agent's
// report on the way. Waiting makes this rank's exit part of the stop, and keeps the reports in order.
constexpr auto kReasonWait = std::chrono::milliseconds(500);

void AwaitReason(const StopSignal& stop, const Departure& departure) {
  const auto end = std::chrono::steady_clock::now() + kReasonWait;
  while (!stop.requested() && !departure.requested() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Exits without static destructors, since threads of LibTorch and the stop signal are still running.
[[noreturn]] void Leave(const absl::Status& status, RankChannel* channel, const StopSignal& stop,
                        const Departure& departure) {
  if (IsPeerLost(status)) AwaitReason(stop, departure);
  const bool told = stop.requested() || departure.requested();
  if (status.ok()) {
    LogInfo("finished");
  } else if (told) {
    LogInfo("%s", status.message());
  } else {
    LogEnd(status);
  }
  SendFinished(status, channel);
  if (status.ok()) _exit(0);
  if (stop.requested()) _exit(stop.exit_code());
  if (told) _exit(kStoppedExitCode);
  _exit(IsPeerLost(status) ? kPeerFailedExitCode : 1);
}

// Null if it was started without one.
std::unique_ptr<FlightRecorder> TakeFlightRecorder() {
  absl::StatusOr<std::unique_ptr<FlightRecorder>> page = FlightRecorder::Map(kFlightRecorderFd);
  if (!page.ok()) {
    if (!absl::IsFailedPrecondition(page.status())) LogWarning("%s", page.status().message());
    return nullptr;
  }
  close(kFlightRecorderFd);
  return *std::move(page);
}

// A rank that does not train yet has nothing to save, and may be waiting for others that never arrive.
struct Ending {
  StopSignal stop;
  Departure departure;
  std::atomic<bool> trains{false};

  void TakeOrder(const v1::LeaveOrder& order) {
    departure.LeaveWithin(absl::Milliseconds(order.within_ms()));
    if (trains) return LogInfo("received an order to leave within_ms=%d", order.within_ms());
    stop.Request(kStoppedExitCode, "order to leave");
  }
};

StepTraces::Options TracesOf(const v1::RankLaunch& launch, RankChannel* channel) {
  StepTraces::Options options;
  options.directory = launch.files_dir();
  options.rank = launch.rank();
  const v1::JobSpec& spec = launch.spec();
  options.steps = {spec.telemetry().trace_steps().begin(), spec.telemetry().trace_steps().end()};
  options.memory = spec.telemetry().memory_snapshot();
  if (options.memory) options.memory_steps = options.steps;
  // The first step of the attempt allocates what later steps reuse.
  if (options.memory && options.steps.empty())
    options.memory_steps = {spec.train().has_epochs()
                                ? launch.checkpoint_step() + 1
                                : std::min<int64_t>(launch.checkpoint_step() + 2, spec.train().steps())};
  options.on_written = [channel, steps = spec.train().steps()](const WrittenTrace& written) {
    v1::RankToAgent message;
    v1::StepTraceResult* const traced = message.mutable_trace_result();
    traced->set_step(written.step);
    traced->set_path(written.path);
    traced->set_bytes(written.bytes);
    traced->set_error(written.error);
    traced->set_requested(written.asked);
    bool all = written.error.empty();
    if (written.memory.has_value()) {
      v1::StepTraceResult::WrittenFile* const memory = traced->mutable_memory_snapshot();
      memory->set_path(written.memory->path);
      memory->set_bytes(written.memory->bytes);
      memory->set_error(written.memory->error);
      all = all && written.memory->error.empty();
    }
    for (const std::string& line : TracedLines(*traced, steps))
      Log(all ? Severity::kInfo : Severity::kWarning, line);
    channel->Send(message).IgnoreError();  // The channel's reader detects a lost agent.
  };
  return options;
}

absl::Status SendTimeline(const v1::StepTimeline& timeline, RankChannel* channel) {
  v1::RankToAgent message;
  *message.mutable_timeline() = timeline;
  return channel->Send(message);
}

absl::Status RunJob(const v1::RankLaunch& received, FlightRecorder* flight, StepTraces* traces,
                    RankChannel* channel, Ending* ending) {
  StopSignal* const stop = &ending->stop;
  RaiseOpenFiles();  // For token files; and CPU ranks have two connections to each peer in each group.
  FSDPD_ASSIGN_OR_RETURN(const v1::RankLaunch launch, WithSteps(received, channel));
  FSDPD_ASSIGN_OR_RETURN(const Plan plan, AcceptedPlan(launch, received.spec().train().has_epochs()));
  for (const std::string& row : ConfigTable(plan, launch)) Log(Severity::kInfo, row);
  PrepareHost(plan.spec.device, launch.device());
  RankRun run;
  run.plan = &plan;
  run.rank = launch.rank();
  run.device_index = launch.device();
  run.store = channel;
  run.store_may_be_unreachable = launch.spec().resources().nodes() > 1;
  run.timeout = kRendezvousTimeout;
  run.bind_address = launch.bind_address();
  run.stop = &stop->requested();
  run.departure = &ending->departure;
  run.traces = traces;
  run.own_process = true;
  run.package_dir = launch.package_dir();
  run.flight = flight;
  for (const v1::SampleRange& range : launch.skipped_samples())
    run.skipped_samples.push_back({range.first(), range.end()});
  run.skipped_samples = Merged(std::move(run.skipped_samples));
  run.known_step = launch.checkpoint_step();
  run.label.job = launch.job_id();
  run.label.attempt = launch.attempt();
  run.label.spec = JsonOf(launch.spec());
  run.on_made = [&](Trainer* trainer, const v1::RestoredCheckpoint* restored) {
    if (restored != nullptr) {
      for (const std::string& line : RestoredLines(*restored)) Log(Severity::kInfo, line);
      for (const std::string& note : restored->notes()) LogWarning("%s: %s", restored->path(), note);
    }
    FSDPD_RETURN_IF_ERROR(SendStarted(plan, *trainer, restored, channel));
    stop->SetAbort([trainer] { trainer->Abort(); });
    ending->trains = true;
    return absl::OkStatus();
  };
  run.on_step = [&](const v1::StepReport& report) {
    Log(Severity::kInfo, StepLine(report, plan.spec.steps));
    if (report.memory().has_spike()) LogWarning("%s", SpikeLine(report, plan.spec.steps));
    if (report.has_evaluation()) Log(Severity::kInfo, EvaluationLine(report, plan.spec.steps));
    for (const std::string& warning : report.warnings()) LogWarning("%s", warning);
    v1::RankToAgent message;
    *message.mutable_step() = report;
    return channel->Send(message);
  };
  run.on_timeline = [&](const v1::StepTimeline& timeline) { return SendTimeline(timeline, channel); };
  run.on_saved = [&](const v1::SavedCheckpoint& saved) {
    // Report the reason for leaving rather than the save that was aborted by it.
    if (!saved.error().empty() && channel->closed()) return;
    Log(saved.error().empty() ? Severity::kInfo : Severity::kError, SavedLine(saved, plan.spec.steps));
    v1::RankToAgent message;
    *message.mutable_saved() = saved;
    channel->Send(message).IgnoreError();  // The channel's reader detects a lost agent.
  };
  run.on_trained = [&](Trainer*) {
    const PhaseScope saving(flight, FlightPhase::kSaving);
    if (!traces->AwaitWritten(kLongestTraceWait)) LogWarning("traces were not written before the job ended");
    return absl::OkStatus();
  };
  run.on_leaving = [&] { stop->SetAbort(nullptr); };
  // Report the failure before groups and devices are released: they may be blocked by what the run failed
  // with, or be slow, while the agent waits for the report.
  run.on_failed = [&](const absl::Status& status) { Leave(status, channel, *stop, ending->departure); };
  return RunRank(std::move(run));
}

// Runs a preflight measurement instead of a job.
absl::Status RunPreflight(const v1::RankLaunch& launch, RankChannel* channel) {
  const bool cuda = launch.spec().resources().device() == v1::DEVICE_CUDA;
  PreflightOptions options = DefaultPreflightOptions(cuda ? DeviceKind::kCuda : DeviceKind::kCpu);
  PrepareHost(options.world.device, launch.device());
  options.world.rank = launch.rank();
  options.world.size = launch.world_size();
  options.world.device_index = launch.device();
  options.world.bind_address = launch.bind_address();
  options.world.rendezvous_timeout = kRendezvousTimeout;
  v1::RankToAgent message;
  FSDPD_ASSIGN_OR_RETURN(*message.mutable_measured(), MeasureDevice(options, channel));
  LogInfo("measured %s: products %.4g FLOP/s, memory %.4g B/s, ring %.4g B/s", message.measured().name(),
          message.measured().matmul_flops(), message.measured().memory_bytes_per_second(),
          message.measured().all_gather_bytes_per_second());
  return channel->Send(message);
}

// A rank that is stopped (SIGSTOP or a debugger) cannot notice that its agent is gone, and would keep its
// device and the lock of its checkpoint directory. The kernel ends it instead.
void EndWithAgent() {
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) LogWarning("%s", ErrnoText("prctl(PR_SET_PDEATHSIG)"));
}

[[noreturn]] void Main() {
  EndWithAgent();
  fcntl(kAgentFd, F_SETFD, FD_CLOEXEC);
  const std::unique_ptr<FlightRecorder> flight = TakeFlightRecorder();
  const PhaseScope begun(flight.get(),
                         FlightPhase::kLoading);  // Reports to the agent that the program has started.
  SetLogName("");  // Log files are per rank, and readers of several add the rank to each line.
  RankChannel channel(kAgentFd);
  EndOnUncaught([&channel](const std::exception& error) {
    const absl::Status status = StatusOf(error);
    LogEnd(status);
    SendFinished(status, &channel);
  });
  Ending ending;
  absl::StatusOr<v1::RankLaunch> launch = channel.ReadLaunch();
  if (!launch.ok()) {
    LogError("received no launch from the agent error=%s", launch.status().ToString());
    _exit(1);
  }
  StepTraces traces(TracesOf(*launch, &channel));
  channel.StartReading(
      [](const absl::Status& status) {
        LogError("lost the agent, exiting error=%s", status.message());
        _exit(1);
      },
      [&ending](const v1::PeerFailed& peer) {
        ending.stop.Request(kPeerFailedExitCode, absl::StrCat("rank ", peer.rank(), " has failed"));
      },
      [&ending](const v1::LeaveOrder& order) { ending.TakeOrder(order); },
      [&traces](const v1::TraceOrder& order) {
        traces.Ask(order.first_step(), order.steps(), order.memory_snapshot());
      });
  const absl::Status status = launch->preflight() ? RunPreflight(*launch, &channel)
                                                  : RunJob(*launch, flight.get(), &traces, &channel, &ending);
  Leave(status, &channel, ending.stop, ending.departure);
}

int Profile(const std::vector<std::string>& arguments) {
  const int code = RunRankProfile(arguments, &std::cout, &std::cerr);
  std::cout.flush();
  _exit(std::cout ? code : 1);  // Same as in Main().
}

// --describe-plugin PATH [--args TEXT]: prints model.plugin.description of a spec.
int PrintDescription(const std::string& path, const std::string& args) {
  // Without a directory dlopen() would search the system's libraries.
  const bool has_directory = path.find('/') != std::string::npos;
  const absl::StatusOr<std::string> json = DescribePlugin(has_directory ? path : "./" + path, args);
  if (json.ok()) return std::printf("%s", json->c_str()) < 0 ? 1 : 0;
  std::fprintf(stderr, "%s\n", std::string(json.status().message()).c_str());
  return 1;
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (fsdpd::IsProfileCommand(arguments)) return fsdpd::Profile(arguments);
  fsdpd::BlockStopSignal();
  signal(SIGXFSZ, SIG_IGN);  // Exceeding a file size limit becomes a write error.
  if (argc == 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("fsdpd-rank %s\n", fsdpd::kVersion);
    return 0;
  }
  const bool describes = argc >= 3 && std::strcmp(argv[1], "--describe-plugin") == 0;
  if (describes && argc == 3) return fsdpd::PrintDescription(argv[2], "");
  if (describes && argc == 5 && std::strcmp(argv[3], "--args") == 0)
    return fsdpd::PrintDescription(argv[2], argv[4]);
  struct stat info;
  if (argc != 1 || fstat(fsdpd::kAgentFd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    std::fprintf(
        stderr,
        "usage: fsdpd-rank [--version | --describe-plugin FILE.so [--args TEXT]]\n"
        "       fsdpd-rank --profile-device cpu|cuda [--ranks N]\n"
        "fsdpd-rank is started by fsdpd-agent, which passes a socket as descriptor 3. To run a job, use "
        "fsdpctl submit.\n");
    return 2;
  }
  fsdpd::Main();
}

// What flows between the agent's parts. Down: Received() gives launches and stops to the supervisor. Up: what
// it says of ranks (RankReady, RankStepped, CheckpointSaved, RankStill, RankExited) goes to /metrics and to
// the coordinator.
#include "agent/agent.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "agent/plugin_check.h"
#include "agent/untold.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/version.h"

namespace fsdpd {
namespace {

v1::AgentMessage UpdateOf(const RankId& id) {
  v1::AgentMessage message;
  v1::RankUpdate* update = message.mutable_rank();
  update->set_job_id(id.of.job_id);
  update->set_attempt(id.of.attempt);
  update->set_rank(id.rank);
  return message;
}

// "cpu" or "cuda:3", as LibTorch names devices.
std::string DeviceName(v1::Device device, int index) {
  return device == v1::DEVICE_CUDA ? absl::StrCat("cuda:", index) : "cpu";
}

// Where others reach what listens on `endpoint`: a wildcard address is no address.
std::string Advertised(const std::string& endpoint, const std::string& bind_address) {
  for (const char* wildcard : {"0.0.0.0:", "[::]:"}) {
    if (absl::StartsWith(endpoint, wildcard))
      return absl::StrCat(bind_address, endpoint.substr(endpoint.rfind(':')));
  }
  return endpoint;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(AgentOptions options,
                                                    std::function<void(const absl::Status&)> refused) {
  std::unique_ptr<Agent> agent(new Agent(std::move(options), std::move(refused)));
  FSDPD_RETURN_IF_ERROR(agent->StartParts());
  return agent;
}

Agent::Agent(AgentOptions options, std::function<void(const absl::Status&)> refused)
    : options_(std::move(options)),
      instance_(NewToken()),
      refused_(std::move(refused)),
      metrics_(std::make_shared<MetricsExporter>(options_.node, options_.offer.slots, Clock::Real())) {}

Agent::~Agent() {
  // The link's threads call the others and the others call the link, so it ends first and is destroyed last.
  if (link_ != nullptr) link_->Shutdown(absl::ZeroDuration());
  if (gpus_ != nullptr) gpus_->Stop();
}

absl::Status Agent::StartParts() {
  FSDPD_RETURN_IF_ERROR(CheckRankBinary(options_.rank_binary));
  for (const std::string& dir : options_.plugin_dirs) {
    FSDPD_ASSIGN_OR_RETURN(PluginDir resolved, ResolvePluginDir(dir));
    plugin_dirs_.push_back(std::move(resolved));
  }
  FSDPD_ASSIGN_OR_RETURN(work_dir_lock_, LogKeeper::Prepare(options_.work_dir));
  FSDPD_RETURN_IF_ERROR(BecomeSubreaper());
  if (options_.tls.given()) {
    metrics_->WatchCertificate([tls = options_.tls]() -> absl::StatusOr<absl::Time> {
      FSDPD_ASSIGN_OR_RETURN(const TlsIdentity shown, ReadTlsFiles(tls, Clock::Real()->Wall()));
      return shown.not_after;
    });
  }
  if (options_.offer.device == v1::DEVICE_CUDA) {
    gpus_ = std::make_shared<GpuWatch>(options_.node, Clock::Real());
    gpus_->Start();
  }
  const auto metrics_text = [metrics = metrics_, gpus = gpus_] {
    std::vector<prometheus::MetricFamily> families = metrics->Collect();
    if (gpus != nullptr) {
      for (prometheus::MetricFamily& family : gpus->Collect()) families.push_back(std::move(family));
    }
    return prometheus::TextSerializer().Serialize(families);
  };
  FSDPD_ASSIGN_OR_RETURN(metrics_server_, MetricsServer::Start(options_.metrics_listen, metrics_text));
  CoordinatorLink::Handler* const handler = this;  // Converted here, where the private bases are known.
  RankEvents* const events = this;
  link_ = std::make_unique<CoordinatorLink>(options_.coordinator, handler, Clock::Real(), options_.tls);
  logs_ = std::make_unique<LogKeeper>(
      options_.work_dir, [this](v1::LogLines lines) { return link_->SendLogs(std::move(lines)); },
      [this](absl::Duration lost) { metrics_->AddLogLoss(lost); });
  RankSupervisor::Options ranks;
  ranks.rank_binary = options_.rank_binary;
  ranks.slots = options_.offer.slots;
  ranks.device = options_.offer.device;
  ranks.bind_address = options_.bind_address;
  ranks.grace = options_.grace;
  ranks.allowed_env = options_.allowed_env;
  ranks.plugin_dirs = plugin_dirs_;
  supervisor_ = std::make_unique<RankSupervisor>(std::move(ranks), logs_.get(), events, Clock::Real());
  folders_ = std::make_unique<JobFolders>(options_.work_dir, options_.folders, [this] {
    std::set<std::string> jobs;
    for (const v1::HostedAttempt& attempt : supervisor_->Hosted()) jobs.insert(attempt.job_id());
    return jobs;
  });
  std::vector<v1::AgentMessage> untold = TakeUntold(options_.work_dir, options_.node);
  if (!untold.empty()) LogInfo("an agent before left messages to be told messages=%d", untold.size());
  for (v1::AgentMessage& message : untold) {
    message.rank().has_saved() ? link_->SendSaved(std::move(message))
                               : link_->SendLifecycle(std::move(message));
  }
  link_->Start();
  return absl::OkStatus();
}

void Agent::Keep(const std::vector<v1::AgentMessage>& untold) {
  const absl::Status kept = KeepUntold(options_.work_dir, options_.node, untold);
  kept_ = !untold.empty();  // Once, also where it fails.
  if (!kept.ok()) {
    LogWarning("what the coordinator was not told is lost with this agent: %s", kept.message());
  } else if (kept_) {
    LogWarning("the coordinator is away; what it was not told is kept for the next agent in %s messages=%d",
               options_.work_dir, untold.size());
  }
}

bool Agent::Told() {
  const std::vector<v1::AgentMessage> untold = link_->Untold();
  if (!untold.empty() && !kept_ && !link_->attached()) Keep(untold);
  return untold.empty();
}

void Agent::Detach() {
  link_->Shutdown(absl::Seconds(2));
  const std::vector<v1::AgentMessage> untold = link_->Untold();
  if (kept_ || !untold.empty()) Keep(untold);
}

int64_t Agent::MemoryPerSlot() const {
  const absl::StatusOr<DeviceOffer> offer = options_.probe ? options_.probe() : options_.offer;
  if (offer.ok() && offer->device == options_.offer.device) return offer->memory_bytes_per_slot;
  LogWarning("memory cannot be probed again, so that of the start is offered: %s", offer.status().ToString());
  return options_.offer.memory_bytes_per_slot;
}

v1::Register Agent::Registration() {
  v1::Register registration;
  registration.set_node(options_.node);
  registration.set_device(options_.offer.device);
  registration.set_slots(options_.offer.slots);
  registration.set_memory_bytes_per_slot(MemoryPerSlot());
  registration.set_version(kVersion);
  registration.set_metrics_endpoint(Advertised(metrics_server_->endpoint(), options_.bind_address));
  registration.set_instance(instance_);
  registration.set_log_windows(true);
  registration.set_traces(true);
  for (const std::string& name : options_.allowed_env) registration.add_allowed_env(name);
  for (const PluginDir& dir : plugin_dirs_) registration.add_plugin_dirs(dir.resolved);
  for (v1::HostedAttempt& attempt : supervisor_->Hosted()) *registration.add_hosted() = std::move(attempt);
  return registration;
}

void Agent::RankLaunched(const RankId& id, const v1::RankLaunch& launch, const v1::MemoryPlan& planned) {
  metrics_->RankLaunched(id, DeviceName(options_.offer.device, launch.device()));
  rank_devices_[id] = launch.device();
  metrics_->RankPlanned(id, planned, launch.spec().train().steps());
  if (id.rank == 0 && !launch.spec().checkpoint().dir().empty()) metrics_->RankSaves(id);
}

void Agent::RankReady(const RankId& id, const v1::RankStarted& started) {
  v1::AgentMessage message = UpdateOf(id);
  v1::RankReady* ready = message.mutable_rank()->mutable_ready();
  if (started.has_restored()) *ready->mutable_restored() = started.restored();
  link_->SendLifecycle(std::move(message));
}

void Agent::RankStepped(const RankId& id, int world, const v1::StepReport& told) {
  v1::StepReport report = told;
  const auto device = rank_devices_.find(id);
  if (gpus_ != nullptr && device != rank_devices_.end()) gpus_->Stepped(device->second, &report);
  metrics_->RankStepped(id, world, report);
  if (id.rank != 0) return;
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_step() = std::move(report);
  link_->SendStep(std::move(message));
}

void Agent::CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) {
  if (!saved.error().empty())
    LogWarning("%s: %s of step %d could not be written: %s", ToString(id),
               saved.format().empty() ? "checkpoint" : "export", saved.step(), saved.error());
  metrics_->CheckpointSaved(id, saved);
  if (id.rank != 0) return;
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_saved() = saved;
  link_->SendSaved(std::move(message));
}

// Who asked is told, and nobody is told of what the spec alone asked for: a coordinator of an older release
// would not know the word.
void Agent::RankTraced(const RankId& id, const v1::StepTraced& traced) {
  if (!traced.error().empty())
    LogWarning("%s: step %d is not traced: %s", ToString(id), traced.step(), traced.error());
  if (!traced.memory_snapshot().error().empty())
    LogWarning("%s: the memory of step %d is not written: %s", ToString(id), traced.step(),
               traced.memory_snapshot().error());
  if (!traced.asked()) return;
  v1::AgentMessage message;
  v1::Traced* const told = message.mutable_traced();
  told->set_job_id(id.of.job_id);
  told->set_attempt(id.of.attempt);
  told->set_rank(id.rank);
  *told->mutable_trace() = traced;
  link_->SendStep(std::move(message));  // Like one, it is worth nothing later.
}

void Agent::RankStood(const RankId& id, const std::string& where) {
  v1::AgentMessage message = UpdateOf(id);
  message.mutable_rank()->mutable_stand()->set_where(where);
  link_->SendStep(std::move(message));  // Like one, it is worth nothing later.
}

void Agent::RankStill(const RankId& id, const v1::RankStill& still) {
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_still() = still;
  link_->SendStep(std::move(message));  // It is told again while it lasts.
}

void Agent::AttemptHung(const AttemptId&) { metrics_->AddHang(); }

void Agent::RankExited(const RankId& id, const v1::RankExit& exit) {
  const bool failed =
      !exit.cancelled() && !exit.peer_failed() && (exit.signal() != 0 || exit.exit_code() != 0);
  metrics_->RankEnded(id, failed, exit.has_bad_step() ? &exit.bad_step() : nullptr);
  if (const auto device = rank_devices_.extract(id); !device.empty() && gpus_ != nullptr)
    gpus_->Ended(device.mapped());
  if (failed && !exit.agent_stopping()) metrics_->AddFailure(exit.fault().kind());
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_exit() = exit;
  link_->SendLifecycle(std::move(message));
}

void Agent::AttemptGone(const AttemptId& id, bool stopped) {
  link_->ForgetRendezvous(id);
  if (!stopped) return;
  v1::AgentMessage message;
  message.mutable_stopped()->set_job_id(id.job_id);
  message.mutable_stopped()->set_attempt(id.attempt);
  link_->SendLifecycle(std::move(message));
}

void Agent::StoreSet(const AttemptId& id, const v1::StoreSet& set) {
  v1::AgentMessage message;
  v1::RendezvousSet* relayed = message.mutable_rendezvous_set();
  relayed->set_job_id(id.job_id);
  relayed->set_attempt(id.attempt);
  relayed->set_key(set.key());
  relayed->set_value(set.value());
  link_->SendRendezvous(std::move(message));
}

void Agent::StoreGet(const AttemptId& id, const std::string& key, int64_t request) {
  v1::AgentMessage message;
  v1::RendezvousGet* relayed = message.mutable_rendezvous_get();
  relayed->set_job_id(id.job_id);
  relayed->set_attempt(id.attempt);
  relayed->set_key(key);
  relayed->set_request(request);
  link_->SendRendezvous(std::move(message));
}

void Agent::Connected(bool connected) {
  metrics_->SetConnected(connected);
  supervisor_->SetConnected(connected);
  if (!connected) logs_->DropAll();
}

void Agent::Received(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kLaunch:
      return supervisor_->Launch(message.launch());
    case v1::CoordinatorMessage::kStop:
      return supervisor_->Stop(message.stop());
    case v1::CoordinatorMessage::kLocate:
      return supervisor_->Locate(message.locate());
    case v1::CoordinatorMessage::kTrace:
      return supervisor_->Trace(message.trace());
    case v1::CoordinatorMessage::kRendezvousValue:
      return supervisor_->StoreValue(message.rendezvous_value());
    case v1::CoordinatorMessage::kReadLogs:
      return logs_->Read(message.read_logs());
    case v1::CoordinatorMessage::kLogGrant:
      return logs_->Grant(message.log_grant());
    case v1::CoordinatorMessage::kForget:
      return folders_->Forget(message.forget().job_id());
    case v1::CoordinatorMessage::kWelcome:
    case v1::CoordinatorMessage::BODY_NOT_SET:
      LogWarning("a message of the coordinator is not understood kind=%d",
                 static_cast<int>(message.body_case()));
  }
}

void Agent::Refused(const absl::Status& why) { refused_(why); }

}  // namespace fsdpd

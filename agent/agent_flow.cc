// Implementation of the routing: Received() for messages of the coordinator, RankX() for events of the
// supervisor.
#include "agent/agent_flow.h"

#include <absl/strings/str_cat.h>

#include <optional>
#include <utility>

#include "agent/link/undelivered.h"
#include "base/log.h"

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

}  // namespace

void AgentFlow::SendUndelivered() {
  std::vector<v1::AgentMessage> undelivered = TakeUndelivered(options_.work_dir, options_.node);
  if (!undelivered.empty())
    LogInfo("queued undelivered messages of an earlier agent messages=%d", undelivered.size());
  for (v1::AgentMessage& message : undelivered) {
    message.rank().has_saved() ? parts_.link->SendSaved(std::move(message))
                               : parts_.link->SendLifecycle(std::move(message));
  }
}

void AgentFlow::Store(const std::vector<v1::AgentMessage>& undelivered) {
  const absl::Status stored = StoreUndelivered(options_.work_dir, options_.node, undelivered);
  stored_ = !undelivered.empty();  // Try once, even if it fails.
  if (!stored.ok()) {
    LogWarning("undelivered messages are lost error=%s", stored.message());
  } else if (stored_) {
    LogWarning(
        "coordinator is unreachable; stored undelivered messages for the next agent work_dir=%s messages=%d",
        options_.work_dir, undelivered.size());
  }
}

bool AgentFlow::AllDelivered() {
  const std::vector<v1::AgentMessage> undelivered = parts_.link->Undelivered();
  if (!undelivered.empty() && !stored_ && !parts_.link->attached()) Store(undelivered);
  return undelivered.empty();
}

void AgentFlow::StoreRest() {
  const std::vector<v1::AgentMessage> undelivered = parts_.link->Undelivered();
  if (stored_ || !undelivered.empty()) Store(undelivered);
}

v1::Register AgentFlow::Registration() {
  v1::Register registration = options_.about();
  registration.set_reports_past_attempts(true);
  registration.set_acknowledges_launches(true);
  for (const AttemptId& id : parts_.supervisor->PastAttempts()) {
    v1::PastAttempt* const had = registration.add_past_attempts();
    had->set_job_id(id.job_id);
    had->set_attempt(id.attempt);
  }
  for (v1::HostedAttempt& attempt : parts_.supervisor->HostedAttempts())
    *registration.add_hosted() = std::move(attempt);
  return registration;
}

void AgentFlow::RankLaunched(const RankId& id, const v1::RankLaunch& launch, const v1::MemoryPlan& planned) {
  if (IsPreflight(id.of)) return;
  parts_.metrics->RankLaunched(id, DeviceName(options_.device, launch.device()));
  rank_devices_[id] = launch.device();
  if (parts_.gpus != nullptr) parts_.gpus->Launched(launch.device(), id);
  parts_.metrics->RankPlanned(id, planned);
  if (id.rank == 0 && !launch.spec().checkpoint().dir().empty()) parts_.metrics->RankSaves(id);
  if (launch.spec().precision().compute() == v1::DTYPE_FP8) parts_.metrics->RankRoundsToFp8(id);
}

void AgentFlow::LaunchAcknowledged(const RankId& first) {
  if (IsPreflight(first.of)) return;
  v1::AgentMessage message = UpdateOf(first);
  message.mutable_rank()->mutable_launch_acknowledged();
  parts_.link->SendStep(std::move(message));  // If it is lost, the coordinator sends the launch again.
}

void AgentFlow::RankReady(const RankId& id, const v1::RankStarted& started) {
  v1::AgentMessage message = UpdateOf(id);
  v1::RankReady* ready = message.mutable_rank()->mutable_ready();
  if (started.has_restored()) *ready->mutable_restored() = started.restored();
  ready->set_steps(started.steps());
  ready->set_epoch_samples(started.epoch_samples());
  parts_.metrics->RankReady(id, started.steps());
  parts_.link->SendLifecycle(std::move(message));
}

void AgentFlow::RankStepped(const RankId& id, int world, const v1::StepReport& reported) {
  v1::StepReport report = reported;
  const auto device = rank_devices_.find(id);
  if (parts_.gpus != nullptr && device != rank_devices_.end()) parts_.gpus->Stepped(device->second, &report);
  parts_.metrics->RankStepped(id, world, report);
  SendComputeTimes(id, world, report);
  if (id.rank != 0) return;
  if (parts_.steps != nullptr) parts_.steps->Add(id.of, report);
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_step() = std::move(report);
  parts_.link->SendStep(std::move(message));
}

void AgentFlow::RankTimeline(const RankId& id, const v1::StepTimeline& timeline) {
  if (id.rank != 0) return;
  parts_.metrics->RankTimeline(id, timeline);
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_timeline() = timeline;
  parts_.link->SendStep(std::move(message));
}

// Compute times find stragglers by comparing ranks, so a job of one rank sends none.
void AgentFlow::SendComputeTimes(const RankId& id, int world, const v1::StepReport& report) {
  if (world < 2) return;
  std::optional<v1::ComputeTimes> times = compute_times_.Take(id, report, options_.clock->Now());
  if (!times.has_value()) return;
  v1::AgentMessage message;
  *message.mutable_heartbeat()->add_compute_times() = *std::move(times);
  parts_.link->SendStep(std::move(message));  // Dropped like a step: stale by then.
}

void AgentFlow::CheckpointSaved(const RankId& id, const v1::SavedCheckpoint& saved) {
  if (!saved.error().empty())
    LogWarning("%s was not written %s step=%d error=%s", saved.format().empty() ? "checkpoint" : "export",
               ToString(id), saved.step(), saved.error());
  parts_.metrics->CheckpointSaved(id, saved);
  if (id.rank != 0) return;
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_saved() = saved;
  parts_.link->SendSaved(std::move(message));
}

// Reports only requested traces to the coordinator. Traces that only the spec asked for are not reported: a
// coordinator of an older release does not know this message.
void AgentFlow::RankTraced(const RankId& id, const v1::StepTraceResult& traced) {
  if (!traced.error().empty())
    LogWarning("step was not traced %s step=%d error=%s", ToString(id), traced.step(), traced.error());
  if (!traced.memory_snapshot().error().empty())
    LogWarning("memory snapshot was not written %s step=%d error=%s", ToString(id), traced.step(),
               traced.memory_snapshot().error());
  if (!traced.requested()) return;
  v1::AgentMessage message;
  v1::TraceResult* const result = message.mutable_trace_result();
  result->set_job_id(id.of.job_id);
  result->set_attempt(id.of.attempt);
  result->set_rank(id.rank);
  *result->mutable_trace() = traced;
  parts_.link->SendStep(std::move(message));  // Dropped like a step: stale by then.
}

void AgentFlow::RankMeasured(const RankId& id, const v1::PreflightDevice& device) {
  if (IsPreflight(id.of) && parts_.preflight != nullptr) parts_.preflight->Measured(id, device);
}

void AgentFlow::RankBlockedIn(const RankId& id, const std::string& where) {
  v1::AgentMessage message = UpdateOf(id);
  message.mutable_rank()->mutable_position()->set_position(where);
  parts_.link->SendStep(std::move(message));  // Dropped like a step: stale by then.
}

void AgentFlow::RankStalled(const RankId& id, const v1::RankNoProgress& no_progress) {
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_no_progress() = no_progress;
  // Sent as a step: it is repeated while the rank makes no progress.
  parts_.link->SendStep(std::move(message));
}

void AgentFlow::AttemptHung(const AttemptId&) { parts_.metrics->AddHang(); }

void AgentFlow::RankExited(const RankId& id, const v1::RankExit& exit) {
  if (IsPreflight(id.of)) {
    if (parts_.preflight != nullptr) parts_.preflight->Exited(id, exit);
    return;
  }
  const bool failed =
      !exit.cancelled() && !exit.peer_failed() && (exit.signal() != 0 || exit.exit_code() != 0);
  parts_.metrics->RankEnded(id, failed, exit.has_bad_step() ? &exit.bad_step() : nullptr);
  if (const auto device = rank_devices_.extract(id); !device.empty() && parts_.gpus != nullptr)
    parts_.gpus->Ended(device.mapped(), id);
  if (failed && !exit.agent_stopping()) parts_.metrics->AddFailure(exit.error_class().kind());
  if (id.rank == 0 && parts_.steps != nullptr) parts_.steps->Ended(id.of);
  v1::AgentMessage message = UpdateOf(id);
  *message.mutable_rank()->mutable_exit() = exit;
  parts_.link->SendLifecycle(std::move(message));
}

void AgentFlow::AttemptGone(const AttemptId& id, bool stopped, const v1::FreedMemory& memory) {
  if (IsPreflight(id) && parts_.preflight != nullptr) parts_.preflight->Gone(id, stopped);
  parts_.link->ForgetRendezvous(id);
  compute_times_.Forget(id);
  if (parts_.directories != nullptr) parts_.directories->EndAttempt(id);
  if (!stopped) return;
  v1::AgentMessage message;
  message.mutable_stopped()->set_job_id(id.job_id);
  message.mutable_stopped()->set_attempt(id.attempt);
  if (memory.gpus() + memory.held_size() > 0) *message.mutable_stopped()->mutable_memory() = memory;
  parts_.link->SendLifecycle(std::move(message));
}

void AgentFlow::StoreSet(const AttemptId& id, const v1::StoreSet& set) {
  v1::AgentMessage message;
  v1::RendezvousSet* relayed = message.mutable_rendezvous_set();
  relayed->set_job_id(id.job_id);
  relayed->set_attempt(id.attempt);
  relayed->set_key(set.key());
  relayed->set_value(set.value());
  parts_.link->SendRendezvous(std::move(message));
}

void AgentFlow::StoreGet(const AttemptId& id, const std::string& key, int64_t request) {
  v1::AgentMessage message;
  v1::RendezvousGet* relayed = message.mutable_rendezvous_get();
  relayed->set_job_id(id.job_id);
  relayed->set_attempt(id.attempt);
  relayed->set_key(key);
  relayed->set_request(request);
  parts_.link->SendRendezvous(std::move(message));
}

void AgentFlow::Connected(bool connected) {
  parts_.metrics->SetConnected(connected);
  parts_.supervisor->SetConnected(connected);
  if (!connected && parts_.logs != nullptr) parts_.logs->DropAll();
}

void AgentFlow::Received(const v1::CoordinatorMessage& message) {
  switch (message.body_case()) {
    case v1::CoordinatorMessage::kLaunch:
      return parts_.supervisor->Launch(message.launch());
    case v1::CoordinatorMessage::kStop:
      return parts_.supervisor->Stop(message.stop());
    case v1::CoordinatorMessage::kLocate:
      return parts_.supervisor->Locate(message.locate());
    case v1::CoordinatorMessage::kTrace:
      return parts_.supervisor->Trace(message.trace());
    case v1::CoordinatorMessage::kRendezvousValue:
      return parts_.supervisor->StoreValue(message.rendezvous_value());
    case v1::CoordinatorMessage::kReadLogs:
      if (parts_.logs != nullptr) parts_.logs->Read(message.read_logs());
      return;
    case v1::CoordinatorMessage::kLogGrant:
      if (parts_.logs != nullptr) parts_.logs->Grant(message.log_grant());
      return;
    case v1::CoordinatorMessage::kDeleteJobFiles:
      if (parts_.directories != nullptr) parts_.directories->Forget(message.delete_job_files().job_id());
      return;
    case v1::CoordinatorMessage::kPreflight:
      if (parts_.preflight != nullptr) parts_.preflight->Begin(message.preflight());
      return;
    case v1::CoordinatorMessage::kWelcome:
    case v1::CoordinatorMessage::BODY_NOT_SET:
      LogWarning("ignored an unknown message of the coordinator kind=%d",
                 static_cast<int>(message.body_case()));
  }
}

void AgentFlow::Refused(const absl::Status& why) { options_.refused(why); }

void AgentFlow::Revoked() { parts_.supervisor->StopRevoked(); }

}  // namespace fsdpd

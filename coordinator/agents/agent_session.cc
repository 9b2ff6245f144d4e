// Dispatch of an agent's messages to the reconciler, the rendezvous, the log relay, the trace relay or the
// timeline board.
#include "coordinator/agents/agent_session.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/rank/message_texts.h"
#include "base/text.h"
#include "base/version.h"
#include "coordinator/agents/agent_numbers.h"
#include "coordinator/nodes/agent_version.h"
#include "coordinator/nodes/preflights.h"

namespace fsdpd {
namespace {

constexpr int kMaxAttemptsListed = 4096;  // Running, or ended recently.
constexpr int kMaxRanksListed = 1024;     // Per attempt: the maximum number of slots of a node.
constexpr int kMaxAllowedEnv = 1024;
constexpr int kMaxPluginDirs = 128;
constexpr size_t kMaxRefusedText = 200;  // In the log.
// A step report has about 1 KiB, a rank's exit in addition up to kMaxTextListBytes of its log.
constexpr size_t kMaxRankUpdateBytes = 256 << 10;

absl::Status CheckListSizes(const v1::Register& info) {
  for (const auto& [name, size, limit, elements] :
       {std::tuple("hosted", info.hosted_size(), kMaxAttemptsListed, "attempts"),
        std::tuple("past_attempts", info.past_attempts_size(), kMaxAttemptsListed, "attempts"),
        std::tuple("allowed_env", info.allowed_env_size(), kMaxAllowedEnv, "elements"),
        std::tuple("plugin_dirs", info.plugin_dirs_size(), kMaxPluginDirs, "elements")}) {
    if (size <= limit) continue;
    return absl::InvalidArgumentError(absl::StrCat("register.", name, ": too many ", elements, " (got ", size,
                                                   ", want at most ", limit, ")"));
  }
  return absl::OkStatus();
}

// These texts are printed to terminals. The error does not repeat the text, because it is logged.
absl::Status CheckText(absl::string_view field, const std::string& text) {
  if (text.size() > kMaxRegisterText) {
    return absl::InvalidArgumentError(absl::StrCat("register.", field, ": too long (got ", text.size(),
                                                   " bytes, want at most ", kMaxRegisterText, ")"));
  }
  if (std::all_of(text.begin(), text.end(), absl::ascii_isprint)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("register.", field, ": not printable ASCII"));
}

absl::Status CheckTexts(const v1::Register& info) {
  FSDPD_RETURN_IF_ERROR(CheckText("version", info.version()));
  FSDPD_RETURN_IF_ERROR(CheckText("metrics_endpoint", info.metrics_endpoint()));
  FSDPD_RETURN_IF_ERROR(CheckText("instance", info.instance()));
  for (const std::string& name : info.allowed_env()) FSDPD_RETURN_IF_ERROR(CheckText("allowed_env", name));
  for (const std::string& path : info.plugin_dirs()) {
    if (path.size() <= kMaxTextBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("register.plugin_dirs: too long a path (got ", path.size(),
                                                   " bytes, want at most ", kMaxTextBytes, ")"));
  }
  return absl::OkStatus();
}

// An agent repeats attempts for days. One invalid attempt must not prevent its registration, so it is dropped
// from the message.
void DropBadAttempts(Meters* meters, v1::Register* info) {
  int bad = 0;
  std::string first;
  const auto drop_bad = [&](auto* attempts, const auto& add) {
    const auto is_bad = [&](const auto& each) {
      v1::AgentMessage alone;
      *add(alone.mutable_register_()) = each;
      const absl::Status sound = CheckNumbers(alone);
      const int ranks = alone.register_().hosted().empty() ? 0 : alone.register_().hosted(0).ranks_size();
      const bool bounded = each.job_id().size() <= kMaxRegisterText && ranks <= kMaxRanksListed;
      if (sound.ok() && each.attempt() > 0 && bounded) return false;
      if (++bad == 1)
        first = absl::StrCat("job=", each.job_id().substr(0, kMaxRefusedText), " attempt=", each.attempt(),
                             " why=", sound.message());
      if (meters != nullptr) meters->RefusedFromAgent("registration");
      return true;
    };
    attempts->erase(std::remove_if(attempts->begin(), attempts->end(), is_bad), attempts->end());
  };
  drop_bad(info->mutable_hosted(), [](v1::Register* one) { return one->add_hosted(); });
  drop_bad(info->mutable_past_attempts(), [](v1::Register* one) { return one->add_past_attempts(); });
  if (bad > 0)
    LogWarning("rejected attempts of a registration node=%s count=%d first_error=%s", info->node(), bad,
               absl::CHexEscape(first.substr(0, kMaxRefusedText)));
}

// Truncates texts. A message that is still too large has lists that no rank produces, and would enlarge the
// job's record.
absl::Status BoundTexts(v1::AgentMessage* message) {
  if (message->has_trace_result()) CutTexts(message->mutable_trace_result());
  if (message->has_logs())
    message->mutable_logs()->set_error(CutText(message->logs().error(), kMaxTextBytes));
  if (message->stopped().memory().held_size() > kMaxRanksListed) message->mutable_stopped()->clear_memory();
  if (!message->has_rank()) return absl::OkStatus();
  CutTexts(message->mutable_rank());
  const size_t bytes = message->rank().ByteSizeLong();
  if (message->rank().has_timeline() || bytes <= kMaxRankUpdateBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("rank: too large (got ", bytes, " bytes, want at most ", kMaxRankUpdateBytes, ")"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentSession>> AgentSession::Open(const Parts& parts,
                                                                 const v1::AgentMessage& first,
                                                                 const std::string& address,
                                                                 std::function<void()> end_stream) {
  if (!first.has_register_())
    return absl::InvalidArgumentError("the first message of a stream must be Register");
  FSDPD_RETURN_IF_ERROR(CheckListSizes(first.register_()));
  FSDPD_RETURN_IF_ERROR(CheckTexts(first.register_()));
  FSDPD_RETURN_IF_ERROR(CheckAgentVersion(first.register_().version(), kVersion));
  v1::AgentMessage sound = first;
  DropBadAttempts(parts.meters, sound.mutable_register_());
  const v1::Register& info = sound.register_();
  FSDPD_RETURN_IF_ERROR(CheckNumbers(sound));
  FSDPD_ASSIGN_OR_RETURN(std::shared_ptr<StreamOutbox> outbox,
                         parts.nodes->Attach(info, address, std::move(end_stream)));
  parts.logs->NodeGone(info.node());  // Pending requests of the previous stream are lost.
  parts.reconciler->Attached(info, outbox->stream_generation());
  return std::unique_ptr<AgentSession>(new AgentSession(parts, info.node(), std::move(outbox)));
}

void AgentSession::Close() {
  parts_.rendezvous->Forget(outbox_->stream_generation());
  if (!parts_.nodes->Detach(node_, outbox_->stream_generation())) return;
  parts_.logs->NodeGone(node_);
  LogInfo("agent detached node=%s", node_);
}

void AgentSession::Left() {
  if (parts_.nodes->Detach(node_, outbox_->stream_generation(), /*left=*/true))
    LogInfo("agent left node=%s", node_);
}

absl::Status AgentSession::Take(v1::AgentMessage* message) {
  if (message->stream_generation() != outbox_->stream_generation()) {
    return absl::AbortedError(absl::StrCat("message of stream generation ", message->stream_generation(),
                                           " on a stream of generation ", outbox_->stream_generation(),
                                           "; register again"));
  }
  parts_.nodes->Touch(node_, outbox_->stream_generation());
  const AttemptHosts::FilterResult word = parts_.reconciler->hosts().Filter(node_, message);
  if (word == AttemptHosts::FilterResult::kRefused) LogRejected(*message);
  if (word != AttemptHosts::FilterResult::kTaken && !message->has_heartbeat()) return absl::OkStatus();
  absl::Status sound = BoundTexts(message);
  if (sound.ok()) sound = CheckNumbers(*message);
  if (!sound.ok()) {
    Drop(*message, sound);
    return absl::OkStatus();
  }
  switch (message->body_case()) {
    case v1::AgentMessage::kHeartbeat:
      for (const v1::ComputeTimes& times : message->heartbeat().compute_times())
        parts_.reconciler->OnReport(node_, times);
      break;  // Touch() was called above.
    case v1::AgentMessage::kRank:
      // No decision depends on a timeline, so it does not wait for the reconciler.
      if (message->rank().has_timeline()) {
        parts_.timelines->Take(message->rank());
        break;
      }
      parts_.reconciler->OnReport(node_, std::move(*message->mutable_rank()), message->sent_unix_nanos());
      break;
    case v1::AgentMessage::kStopped:
      parts_.reconciler->OnReport(node_, message->stopped());
      break;
    case v1::AgentMessage::kPreflight:
      parts_.reconciler->OnReport(node_, CutToBounds(std::move(*message->mutable_preflight())));
      break;
    case v1::AgentMessage::kLogs:
      if (parts_.logs->Take(node_, message->logs()) > 0) LogRejected(*message);
      break;
    case v1::AgentMessage::kTraceResult:
      parts_.traces->Take(node_, message->trace_result());
      break;
    case v1::AgentMessage::kRendezvousSet:
      SetKey(message->rendezvous_set());
      break;
    case v1::AgentMessage::kRendezvousGet:
      GetKey(message->rendezvous_get());
      break;
    case v1::AgentMessage::kRegister:
      return absl::InvalidArgumentError("Register may only be the first message of a stream");
    case v1::AgentMessage::BODY_NOT_SET:
      // A message of a newer agent: ignoring it would lose data silently.
      return absl::InvalidArgumentError("unknown message body; upgrade the coordinator");
  }
  return absl::OkStatus();
}

void AgentSession::LogRejected(const v1::AgentMessage& message) {
  const char* kind = RefusedKindOf(message);
  if (parts_.meters != nullptr) parts_.meters->RefusedFromAgent(kind);
  if (!refused_.insert(kind).second) return;
  LogWarning("rejected an agent message about ranks that its node does not host kind=%s node=%s message=%s",
             kind, node_, absl::CHexEscape(message.ShortDebugString().substr(0, kMaxRefusedText)));
}

void AgentSession::Drop(const v1::AgentMessage& message, const absl::Status& why) {
  const std::string what(why.message());
  // Deduplicated by field or list: values may differ in each message.
  if (dropped_for_.insert(what.substr(0, what.find_first_of("[ "))).second)
    LogWarning("dropped an agent message node=%s error=%s", node_, what);
  if (message.has_logs())
    parts_.logs->Fail(node_, message.logs().request(), absl::StrCat("log lines of the agent: ", what));
  if (message.has_preflight()) {
    v1::PreflightResult failed;
    failed.set_number(message.preflight().number());
    failed.set_error(absl::StrCat("preflight result: ", what));
    parts_.reconciler->OnReport(node_, failed);
  }
  const v1::RankUpdate& update = message.rank();
  // Other updates are repeated, or no operation waits for them.
  if (!update.has_ready() && !update.has_exit() && !update.has_saved()) return;
  parts_.reconciler->AttemptFailed(
      node_, {update.job_id(), update.attempt()},
      absl::StrCat("rank ", update.rank(), " on node ", node_, ": invalid report: ", what));
}

void AgentSession::SetKey(const v1::RendezvousSet& set) {
  const AttemptRef ref = {set.job_id(), set.attempt()};
  const absl::Status status = parts_.rendezvous->Set(ref, set.key(), set.value());
  // A stale key is not an error. An invalid key or value is an error of the attempt: its ranks would wait for
  // it forever.
  if (status.ok() || absl::IsFailedPrecondition(status)) return;
  parts_.reconciler->AttemptFailed(node_, ref, std::string(status.message()));
}

void AgentSession::GetKey(const v1::RendezvousGet& get) {
  const AttemptRef ref = {get.job_id(), get.attempt()};
  const auto answer = [outbox = outbox_, request = get.request()](const std::string& value) {
    v1::CoordinatorMessage message;
    message.mutable_rendezvous_value()->set_request(request);
    message.mutable_rendezvous_value()->set_value(value);
    outbox->Push(std::move(message));
  };
  const absl::Status status = parts_.rendezvous->Get(ref, get.key(), outbox_->stream_generation(), answer);
  if (status.ok() || absl::IsFailedPrecondition(status)) return;
  parts_.reconciler->AttemptFailed(node_, ref, std::string(status.message()));
}

}  // namespace fsdpd

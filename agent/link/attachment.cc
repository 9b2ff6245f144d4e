#include "agent/link/attachment.h"

#include <absl/strings/str_cat.h>

#include "base/rank/message_texts.h"

namespace fsdpd {
namespace {

constexpr absl::Duration kWelcomeTimeout = absl::Seconds(10);

}  // namespace

v1::AgentMessage Attachment::Begin(v1::Register registration) {
  welcomed_ = false;
  stream_generation_ = 0;
  heartbeat_interval_ = absl::Milliseconds(kHeartbeatIntervalMs);
  last_sent_ = sending_since_ = clock_->Now();
  lapsed_ = false;
  due_ = last_sent_ + kWelcomeTimeout;
  outbox_.NewStream();
  v1::AgentMessage message;
  *message.mutable_register_() = std::move(registration);
  auto* hosted = message.mutable_register_()->mutable_hosted();
  for (const RankId& id : outbox_.RetainedExits()) {
    auto entry = std::find_if(hosted->begin(), hosted->end(), [&id](const v1::HostedAttempt& a) {
      return a.job_id() == id.of.job_id && a.attempt() == id.of.attempt;
    });
    if (entry == hosted->end()) {
      v1::HostedAttempt* added = hosted->Add();
      added->set_job_id(id.of.job_id);
      added->set_attempt(id.of.attempt);
      added->add_ranks(id.rank);
    } else if (std::find(entry->ranks().begin(), entry->ranks().end(), id.rank) == entry->ranks().end()) {
      entry->add_ranks(id.rank);
    }
  }
  return message;
}

absl::Status Attachment::Check(const v1::CoordinatorMessage& message) const {
  if (Lapsed()) return absl::CancelledError(kLapsedMessage);
  if (!welcomed_) {
    if (fenced_ && message.stream_generation() != 0 && message.stream_generation() < newest_generation_) {
      return absl::FailedPreconditionError(
          absl::StrCat("coordinator is no longer the leader: stale stream generation (got ",
                       message.stream_generation(), ", want at least ", newest_generation_, ")"));
    }
    if (message.has_welcome() && message.stream_generation() != 0) return absl::OkStatus();
    return absl::InvalidArgumentError("coordinator: first message is not a Welcome with a stream generation");
  }
  if (message.stream_generation() == stream_generation_) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("coordinator: message has the wrong stream generation (got ",
                                                 message.stream_generation(), ", want ", stream_generation_,
                                                 ")"));
}

void Attachment::Welcome(const v1::CoordinatorMessage& message) {
  stream_generation_ = message.stream_generation();
  newest_generation_ = std::max(newest_generation_, stream_generation_);
  welcomed_ = ever_welcomed_ = true;
  if (message.welcome().heartbeat_interval_ms() > 0)
    heartbeat_interval_ = absl::Milliseconds(message.welcome().heartbeat_interval_ms());
  due_ = clock_->Now() + heartbeat_interval_;
}

void Attachment::Take(const v1::CoordinatorMessage& message) {
  if (message.has_rendezvous_value()) outbox_.ForgetGet(message.rendezvous_value().request());
}

bool Attachment::Next(v1::AgentMessage* message, int64_t* ticket) {
  const absl::Time now = clock_->Now();
  if (!welcomed_ || LapsedBy(now)) return false;
  sending_since_ = now;
  if (!outbox_.Next(message, ticket)) {
    if (now < due_) return false;
    message->Clear();
    message->mutable_heartbeat();
    *ticket = -1;
  }
  if (message->has_rank()) CutTexts(message->mutable_rank());
  message->set_stream_generation(stream_generation_);
  message->set_sent_unix_nanos(absl::ToUnixNanos(clock_->Wall()));
  return true;
}

void Attachment::Written(int64_t ticket) {
  const absl::Time now = clock_->Now();
  // The process may have been suspended during the write: the coordinator may have received it much later.
  lapsed_ = LapsedBy(now);
  last_sent_ = sending_since_;
  due_ = now + heartbeat_interval_;
  outbox_.Settle(now);  // Before Sent(): Settle() detects a suspension by the time since its last call.
  if (ticket >= 0) outbox_.Sent(ticket, now);
}

void Attachment::End(bool in_order) {
  welcomed_ = lapsed_ = false;
  due_ = last_sent_ = absl::InfiniteFuture();
  if (!in_order) outbox_.NewStream();
}

bool Attachment::RefusedForGood(const absl::Status& status) const {
  const bool refused = absl::IsAlreadyExists(status) || absl::IsInvalidArgument(status) ||
                       absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status);
  return refused && !ever_welcomed_;
}

}  // namespace fsdpd

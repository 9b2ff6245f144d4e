#include "agent/testing/scripted_coordinator.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <utility>

#include "base/check.h"

namespace fsdpd {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

}  // namespace

ScriptedCoordinator::ScriptedCoordinator() {
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  FSDPD_CHECK(server_ != nullptr);
  address_ = absl::StrCat("127.0.0.1:", port);
}

ScriptedCoordinator::~ScriptedCoordinator() { server_->Shutdown(std::chrono::system_clock::now()); }

void ScriptedCoordinator::Refuse(grpc::Status status) {
  MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

void ScriptedCoordinator::WithholdWelcome() {
  MutexLock lock(&mutex_);
  withhold_welcome_ = true;
}

void ScriptedCoordinator::HoldRendezvous(bool hold) {
  MutexLock lock(&mutex_);
  hold_rendezvous_ = hold;
  if (stream_ != nullptr) Answer(stream_);
}

void ScriptedCoordinator::SetRendezvous(const std::string& key, const std::string& value) {
  MutexLock lock(&mutex_);
  store_[key] = value;
  if (stream_ != nullptr) Answer(stream_);
}

void ScriptedCoordinator::ForgetRendezvous() {
  MutexLock lock(&mutex_);
  store_.clear();
  gets_.clear();
}

void ScriptedCoordinator::Disconnect() {
  MutexLock lock(&mutex_);
  refusal_ = grpc::Status(grpc::StatusCode::UNAVAILABLE, "away");
  if (context_ != nullptr) context_->TryCancel();
  while (stream_ != nullptr) changed_.Wait(&mutex_);
}

void ScriptedCoordinator::Resume() { Refuse(grpc::Status::OK); }

void ScriptedCoordinator::Send(v1::CoordinatorMessage message) {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(stream_ != nullptr);
  message.set_stream_generation(stream_generation_);
  stream_->Write(message);
}

void ScriptedCoordinator::SendWithGeneration(v1::CoordinatorMessage message, int64_t stream_generation) {
  MutexLock lock(&mutex_);
  FSDPD_CHECK(stream_ != nullptr);
  message.set_stream_generation(stream_generation);
  stream_->Write(message);
}

v1::AgentMessage ScriptedCoordinator::Await(const Matcher& matches) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(&mutex_);
  for (size_t next = 0;;) {
    for (; next < received_.size(); ++next) {
      if (matches(received_[next])) return received_[next];
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      ADD_FAILURE() << "an awaited message did not come";
      return {};
    }
    changed_.WaitFor(&mutex_, kPatience);
  }
}

v1::Register ScriptedCoordinator::AwaitRegister(int count) {
  return Await([&count](const v1::AgentMessage& m) { return m.has_register_() && --count == 0; }).register_();
}

v1::RankUpdate ScriptedCoordinator::AwaitExit(const std::string& job, int attempt, int rank) {
  return Await([&](const v1::AgentMessage& m) {
           return m.rank().has_exit() && m.rank().job_id() == job && m.rank().attempt() == attempt &&
                  m.rank().rank() == rank;
         })
      .rank();
}

v1::RankUpdate ScriptedCoordinator::AwaitReady(const std::string& job, int attempt, int rank) {
  return Await([&](const v1::AgentMessage& m) {
           return m.rank().has_ready() && m.rank().job_id() == job && m.rank().attempt() == attempt &&
                  m.rank().rank() == rank;
         })
      .rank();
}

void ScriptedCoordinator::AwaitStopped(const std::string& job, int attempt) {
  Await([&](const v1::AgentMessage& m) {
    return m.has_stopped() && m.stopped().job_id() == job && m.stopped().attempt() == attempt;
  });
}

bool ScriptedCoordinator::AwaitEnd() {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  MutexLock lock(&mutex_);
  while (ended_in_order_.empty()) {
    if (std::chrono::steady_clock::now() >= deadline) {
      ADD_FAILURE() << "no stream ended";
      return false;
    }
    changed_.WaitFor(&mutex_, kPatience);
  }
  return ended_in_order_.front();
}

int ScriptedCoordinator::Count(const Matcher& matches) {
  MutexLock lock(&mutex_);
  int count = 0;
  for (const v1::AgentMessage& message : received_) count += matches(message) ? 1 : 0;
  return count;
}

std::vector<v1::AgentMessage> ScriptedCoordinator::Received() {
  MutexLock lock(&mutex_);
  return received_;
}

void ScriptedCoordinator::Take(const v1::AgentMessage& message) {
  received_.push_back(message);
  if (message.has_rendezvous_set()) store_[message.rendezvous_set().key()] = message.rendezvous_set().value();
  if (message.has_rendezvous_get()) gets_.push_back(message.rendezvous_get());
}

void ScriptedCoordinator::Answer(Stream* stream) {
  for (size_t i = 0; !hold_rendezvous_ && i < gets_.size();) {
    const auto value = store_.find(gets_[i].key());
    if (value == store_.end()) {
      ++i;
      continue;
    }
    v1::CoordinatorMessage answer;
    answer.set_stream_generation(stream_generation_);
    answer.mutable_rendezvous_value()->set_request(gets_[i].request());
    answer.mutable_rendezvous_value()->set_value(value->second);
    stream->Write(answer);
    gets_.erase(gets_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

grpc::Status ScriptedCoordinator::Attach(grpc::ServerContext* context, Stream* stream) {
  v1::AgentMessage message;
  {
    MutexLock lock(&mutex_);
    if (!refusal_.ok()) return refusal_;
  }
  if (!stream->Read(&message) || !message.has_register_() || message.stream_generation() != 0) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT,
                        "the first message is not a Register with stream generation 0");
  }
  int64_t stream_generation = 0;
  {
    MutexLock lock(&mutex_);
    stream_generation = ++stream_generation_;
    v1::CoordinatorMessage welcome;
    welcome.set_stream_generation(stream_generation);
    welcome.mutable_welcome()->set_heartbeat_interval_ms(50);
    if (!withhold_welcome_) stream->Write(welcome);
    stream_ = stream;
    context_ = context;
    Take(message);
    changed_.SignalAll();
  }
  while (stream->Read(&message)) {
    MutexLock lock(&mutex_);
    EXPECT_EQ(message.stream_generation(), stream_generation);
    Take(message);
    Answer(stream);
    changed_.SignalAll();
  }
  MutexLock lock(&mutex_);
  stream_ = nullptr;
  context_ = nullptr;
  ended_in_order_.push_back(!context->IsCancelled());
  changed_.SignalAll();
  return grpc::Status::OK;
}

}  // namespace fsdpd

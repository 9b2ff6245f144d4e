#include "coordinator/testing/scripted_agent.h"

#include <algorithm>
#include <chrono>

namespace fsdpd {
namespace {

constexpr auto kTimeout = std::chrono::seconds(20);

v1::RankUpdate* UpdateIn(v1::AgentMessage* message, const AttemptRef& ref, int rank) {
  v1::RankUpdate* update = message->mutable_rank();
  update->set_job_id(ref.job);
  update->set_attempt(ref.attempt);
  update->set_rank(rank);
  return update;
}

}  // namespace

ScriptedAgent::ScriptedAgent(const std::string& address, const Options& options)
    : stub_(v1::AgentLink::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()))) {
  context_.set_wait_for_ready(true);
  stream_ = stub_->Attach(&context_);
  v1::AgentMessage message;
  v1::Register* info = message.mutable_register_();
  info->set_node(options.node);
  info->set_device(v1::DEVICE_CPU);
  info->set_slots(options.slots);
  info->set_instance(options.instance);
  info->set_memory_bytes_per_slot(options.memory_bytes_per_slot);
  info->set_evidence(options.evidence);
  info->set_step_records(true);
  for (const v1::HostedAttempt& hosted : options.hosted) *info->add_hosted() = hosted;
  stream_->Write(message);
  reader_ = std::thread([this] { ReadAll(); });
}

ScriptedAgent::~ScriptedAgent() {
  context_.TryCancel();
  reader_.join();
}

void ScriptedAgent::ReadAll() {
  v1::CoordinatorMessage message;
  while (stream_->Read(&message)) {
    MutexLock lock(&mutex_);
    inbox_.push_back(message);
    changed_.SignalAll();
  }
  const grpc::Status end = stream_->Finish();
  MutexLock lock(&mutex_);
  end_ = end;
  ended_ = true;
  changed_.SignalAll();
}

std::optional<v1::CoordinatorMessage> ScriptedAgent::Await(v1::CoordinatorMessage::BodyCase kind) {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  MutexLock lock(&mutex_);
  for (;;) {
    while (!inbox_.empty()) {
      v1::CoordinatorMessage message = std::move(inbox_.front());
      inbox_.pop_front();
      if (message.body_case() == kind) return message;
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (ended_ || left <= std::chrono::seconds(0)) return std::nullopt;
    changed_.WaitFor(&mutex_, left);
  }
}

bool ScriptedAgent::AwaitWelcome() {
  const auto welcome = Await(v1::CoordinatorMessage::kWelcome);
  if (!welcome.has_value()) return false;
  stream_generation_ = welcome->stream_generation();
  return true;
}

grpc::Status ScriptedAgent::AwaitEnd() {
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  MutexLock lock(&mutex_);
  while (!ended_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::seconds(0))
      return grpc::Status(grpc::StatusCode::UNKNOWN, "the stream did not end");
    changed_.WaitFor(&mutex_, left);
  }
  return end_;
}

bool ScriptedAgent::HasReceived(v1::CoordinatorMessage::BodyCase kind) {
  MutexLock lock(&mutex_);
  return std::any_of(inbox_.begin(), inbox_.end(),
                     [&](const v1::CoordinatorMessage& message) { return message.body_case() == kind; });
}

void ScriptedAgent::Send(v1::AgentMessage message) {
  if (message.stream_generation() == 0) message.set_stream_generation(stream_generation_);
  stream_->Write(message);
}

void ScriptedAgent::Ready(const AttemptRef& ref, int rank) {
  v1::AgentMessage message;
  UpdateIn(&message, ref, rank)->mutable_ready();
  Send(message);
}

void ScriptedAgent::Step(const AttemptRef& ref, int64_t step, double loss) {
  v1::AgentMessage message;
  v1::StepReport* report = UpdateIn(&message, ref, 0)->mutable_step();
  report->set_step(step);
  report->set_loss(loss);
  Send(message);
}

void ScriptedAgent::Saved(const AttemptRef& ref, int64_t step) {
  v1::AgentMessage message;
  UpdateIn(&message, ref, 0)->mutable_saved()->set_step(step);
  Send(message);
}

void ScriptedAgent::Exit(const AttemptRef& ref, int rank, int code, const std::string& error,
                         absl::Duration age) {
  v1::AgentMessage message;
  v1::RankExit* exit = UpdateIn(&message, ref, rank)->mutable_exit();
  exit->set_rank(rank);
  exit->set_exit_code(code);
  exit->set_error(error);
  exit->set_unix_nanos(1);  // An agent's clock may differ from the coordinator's.
  message.set_sent_unix_nanos(1 + absl::ToInt64Nanoseconds(age));
  if (code != 0) exit->add_log_tail("last line of rank " + std::to_string(rank));
  Send(message);
}

void ScriptedAgent::Stopped(const AttemptRef& ref) {
  v1::AgentMessage message;
  message.mutable_stopped()->set_job_id(ref.job);
  message.mutable_stopped()->set_attempt(ref.attempt);
  Send(message);
}

void ScriptedAgent::SetKey(const AttemptRef& ref, const std::string& key, const std::string& value) {
  v1::AgentMessage message;
  v1::RendezvousSet* set = message.mutable_rendezvous_set();
  set->set_job_id(ref.job);
  set->set_attempt(ref.attempt);
  set->set_key(key);
  set->set_value(value);
  Send(message);
}

void ScriptedAgent::GetKey(const AttemptRef& ref, const std::string& key, int64_t request) {
  v1::AgentMessage message;
  v1::RendezvousGet* get = message.mutable_rendezvous_get();
  get->set_job_id(ref.job);
  get->set_attempt(ref.attempt);
  get->set_key(key);
  get->set_request(request);
  Send(message);
}

}  // namespace fsdpd

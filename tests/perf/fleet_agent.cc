#include "tests/perf/fleet_agent.h"

#include <absl/strings/str_cat.h>

#include <optional>

#include "base/limits.h"

namespace fsdpd::perf {
namespace {

constexpr absl::Duration kRepeatFor = absl::Seconds(30);  // The value in agent.proto.
constexpr absl::Duration kFirstRetry = absl::Milliseconds(100), kLastRetry = absl::Seconds(3);

// Like the channel of a real agent, but each has a separate connection.
std::shared_ptr<grpc::Channel> Connect(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 5000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

v1::AgentMessage OfRank(const std::pair<std::string, int>& ref, int rank) {
  v1::AgentMessage message;
  message.mutable_rank()->set_job_id(ref.first);
  message.mutable_rank()->set_attempt(ref.second);
  message.mutable_rank()->set_rank(rank);
  return message;
}

// As large as that of a rank with sharding over a few nodes.
void FillReport(int64_t step, absl::Time now, v1::StepReport* report) {
  report->set_step(step);
  report->set_loss(5.0 / static_cast<double>(step));
  report->set_grad_norm(1.5);
  report->set_learning_rate(3e-4);
  report->set_step_seconds(1.0);
  report->set_tokens(1 << 20);
  report->set_compute_seconds(0.9);
  report->set_exposed_seconds(0.05);
  report->set_unix_nanos(absl::ToUnixNanos(now));
  for (const v1::CommOp op : {v1::COMM_OP_ALL_GATHER, v1::COMM_OP_REDUCE_SCATTER, v1::COMM_OP_ALL_REDUCE}) {
    v1::OpTime* time = report->add_ops();
    time->set_op(op);
    time->set_seconds(0.4);
    time->set_exposed_seconds(0.02);
    time->set_bytes(int64_t{1} << 33);
    time->set_count(64);
  }
  report->mutable_memory()->set_allocated_bytes(int64_t{40} << 30);
  report->mutable_memory()->set_reserved_bytes(int64_t{60} << 30);
  report->mutable_memory()->set_peak_bytes(int64_t{58} << 30);
  report->mutable_memory()->set_device_mallocs(120);
  report->mutable_memory()->set_allocations(step * 4000);
}

}  // namespace

// A stream. It may be deleted once done() is true.
class FleetAgent::Call final : public grpc::ClientBidiReactor<v1::AgentMessage, v1::CoordinatorMessage> {
 public:
  explicit Call(FleetAgent* agent) : agent_(agent) {}

  void Begin(v1::AgentMessage registration) {
    context_.set_wait_for_ready(true);
    agent_->stub_->async()->Attach(&context_, this);
    AddHold();  // For writes that start outside gRPC's callbacks.
    Send(std::move(registration));
    StartRead(&incoming_);
    StartCall();
  }
  void Send(v1::AgentMessage message) {
    MutexLock lock(&mutex_);
    if (over_) return;
    waiting_.push_back(std::move(message));
    if (waiting_.size() == 1) StartWrite(&waiting_.front());
  }
  void Cancel() { context_.TryCancel(); }
  bool done() const {
    MutexLock lock(&mutex_);
    return done_;
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      agent_->Received(incoming_);
      return StartRead(&incoming_);
    }
    {
      MutexLock lock(&mutex_);
      over_ = true;
    }
    RemoveHold();
  }
  void OnWriteDone(bool ok) override {
    MutexLock lock(&mutex_);
    if (!ok) over_ = true;
    waiting_.pop_front();
    if (!over_ && !waiting_.empty()) StartWrite(&waiting_.front());
  }
  void OnDone(const grpc::Status&) override {
    MutexLock lock(&mutex_);
    done_ = true;
  }

 private:
  FleetAgent* const agent_;
  grpc::ClientContext context_;
  v1::CoordinatorMessage incoming_;
  mutable Mutex mutex_;
  std::deque<v1::AgentMessage> waiting_ ABSL_GUARDED_BY(mutex_);  // The first one is being written.
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

FleetAgent::FleetAgent(Options options)
    : options_(std::move(options)), backoff_(kFirstRetry, kLastRetry, options_.seed) {}

FleetAgent::~FleetAgent() {
  if (call_ == nullptr) return;
  call_->Cancel();
  while (!call_->done()) absl::SleepFor(absl::Milliseconds(1));
}

void FleetAgent::Tick(absl::Time now) {
  if (call_ != nullptr && call_->done()) {
    call_.reset();
    MutexLock lock(&mutex_);
    if (counts_.attached) backoff_.Reset();
    counts_.attached = false;
    retry_at_ = now + backoff_.Next();
  }
  if (call_ == nullptr && now >= retry_at_) {
    if (channel_ == nullptr) {
      channel_ = Connect(options_.coordinator);
      stub_ = v1::AgentLink::NewStub(channel_);
    }
    v1::AgentMessage registration;
    {
      MutexLock lock(&mutex_);
      stream_generation_ = 0;
      ++counts_.streams;
      registration = Registration();
    }
    call_ = std::make_unique<Call>(this);
    call_->Begin(std::move(registration));
  }
  MutexLock lock(&mutex_);
  while (!past_.empty() && now - past_.front().time > kRepeatFor) past_.pop_front();
  for (auto& [ref, hosted] : hosted_) {
    if (now >= hosted.due) Report(ref, &hosted, now);
  }
  if (!counts_.attached || now < heartbeat_due_) return;
  v1::AgentMessage message;
  message.mutable_heartbeat();
  Send(std::move(message));
}

void FleetAgent::Drop() {
  if (call_ != nullptr) call_->Cancel();
  stub_.reset();
  channel_.reset();
}

bool FleetAgent::Finish(absl::Time now) {
  MutexLock lock(&mutex_);
  if (hosted_.empty()) return false;
  const Ref ref = hosted_.begin()->first;
  Ended(ref, 0, now);
  return true;
}

FleetAgent::Counts FleetAgent::counts() const {
  MutexLock lock(&mutex_);
  Counts counts = counts_;
  counts.attempts = static_cast<int>(hosted_.size());
  return counts;
}

v1::AgentMessage FleetAgent::Registration() {
  v1::AgentMessage message;
  v1::Register* info = message.mutable_register_();
  info->set_node(options_.node);
  info->set_instance(absl::StrCat("instance-", options_.node));
  info->set_device(v1::DEVICE_CPU);
  info->set_slots(options_.slots);
  info->set_memory_bytes_per_slot(int64_t{16} << 30);
  info->set_version("0");
  info->set_metrics_endpoint("127.0.0.1:1");
  info->set_log_windows(true);
  info->set_traces(true);
  std::map<Ref, v1::HostedAttempt*> listed;
  const auto entry = [&](const Ref& ref) {
    v1::HostedAttempt*& attempt = listed[ref];
    if (attempt == nullptr) attempt = info->add_hosted();
    attempt->set_job_id(ref.first);
    attempt->set_attempt(ref.second);
    return attempt;
  };
  for (const auto& [ref, hosted] : hosted_) {
    for (int i = 0; i < hosted.ranks; ++i) entry(ref)->add_ranks(hosted.first_rank + i);
  }
  for (const Past& past : past_) {
    if (past.message.rank().has_exit()) entry(past.ref)->add_ranks(past.message.rank().rank());
  }
  return message;
}

void FleetAgent::Received(const v1::CoordinatorMessage& message) {
  MutexLock lock(&mutex_);
  if (message.has_welcome()) {
    stream_generation_ = message.stream_generation();
    counts_.attached = true;
    for (const auto& [ref, hosted] : hosted_) ApplyReady(ref, hosted);
    for (const Past& past : past_) Send(past.message);
  } else if (message.has_launch()) {
    Launched(message.launch());
  } else if (message.has_stop()) {
    const Ref ref = {message.stop().job_id(), message.stop().attempt()};
    Ended(ref, 143, absl::Now());
  }
}

void FleetAgent::Launched(const v1::Launch& launch) {
  const Ref ref = {launch.job_id(), launch.attempt()};
  Hosted& hosted = hosted_[ref];
  hosted.first_rank = launch.first_rank();
  hosted.ranks = launch.ranks();
  hosted.world = launch.world_size();
  // Spread over the second, like the reports of independent jobs.
  hosted.due = absl::Now() + options_.step * (1.0 + (options_.seed % 1000) / 1000.0);
  ApplyReady(ref, hosted);
}

void FleetAgent::ApplyReady(const Ref& ref, const Hosted& hosted) {
  for (int i = 0; i < hosted.ranks; ++i) {
    v1::AgentMessage message = OfRank(ref, hosted.first_rank + i);
    message.mutable_rank()->mutable_ready();
    Send(std::move(message));
  }
}

void FleetAgent::TellComputeTimes(const Ref& ref, const Hosted& hosted, const v1::StepReport& report,
                                  absl::Time now) {
  if (hosted.world < 2) return;
  for (int i = 0; i < hosted.ranks; ++i) {
    std::optional<v1::ComputeTimes> times =
        compute_times_.Take({{ref.first, ref.second}, hosted.first_rank + i}, report, now);
    if (!times.has_value()) continue;
    v1::AgentMessage message;
    *message.mutable_heartbeat()->add_compute_times() = *std::move(times);
    Send(std::move(message));
  }
}

void FleetAgent::Report(const Ref& ref, Hosted* hosted, absl::Time now) {
  hosted->due += options_.step;
  ++hosted->step;
  v1::StepReport report;
  FillReport(hosted->step, now, &report);
  TellComputeTimes(ref, *hosted, report, now);
  if (hosted->first_rank != 0 || !counts_.attached) return;
  v1::AgentMessage message = OfRank(ref, 0);
  *message.mutable_rank()->mutable_step() = std::move(report);
  ++counts_.reports;
  Send(std::move(message));
}

void FleetAgent::Ended(const Ref& ref, int code, absl::Time now) {
  const auto it = hosted_.find(ref);
  const Hosted hosted = it == hosted_.end() ? Hosted() : it->second;
  std::vector<v1::AgentMessage> told;
  for (int i = 0; i < hosted.ranks; ++i) {
    v1::AgentMessage message = OfRank(ref, hosted.first_rank + i);
    v1::RankExit* exit = message.mutable_rank()->mutable_exit();
    exit->set_exit_code(code);
    exit->set_unix_nanos(absl::ToUnixNanos(now));
    if (hosted.first_rank + i == 0 && hosted.step > 0)
      FillReport(hosted.step, now, exit->mutable_last_report());
    told.push_back(std::move(message));
  }
  told.emplace_back();
  told.back().mutable_stopped()->set_job_id(ref.first);
  told.back().mutable_stopped()->set_attempt(ref.second);
  if (it != hosted_.end()) hosted_.erase(it);
  compute_times_.Forget({ref.first, ref.second});
  for (v1::AgentMessage& message : told) {
    past_.push_back({now, ref, message});
    if (counts_.attached) Send(std::move(message));
  }
}

void FleetAgent::Send(v1::AgentMessage message) {
  if (stream_generation_ == 0 || call_ == nullptr) return;
  message.set_stream_generation(stream_generation_);
  message.set_sent_unix_nanos(absl::ToUnixNanos(absl::Now()));
  call_->Send(std::move(message));
  heartbeat_due_ = absl::Now() + absl::Milliseconds(kHeartbeatIntervalMs);  // As in attachment.h.
}

}  // namespace fsdpd::perf

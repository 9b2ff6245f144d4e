// Fuzzer of messages from an agent to the coordinator: the stream, and the registry, reconciler with a store
// on disk, rendezvous, logs and traces behind it. A job with two ranks on two nodes runs, and the fuzzer
// sends messages of one agent. For any input, no number overflows, and the ledger assigns each second of the
// job to one cause.
#include <cmath>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/temp_dir.h"
#include "base/version.h"
#include "coordinator/agents/agent_session.h"
#include "coordinator/job/job_ledger.h"
#include "coordinator/store/sqlite_store.h"
#include "fsdp/plan/spec/defaults.h"
#include "tests/fuzzers/cases.h"

namespace fsdpd::fuzz {
namespace {

constexpr char kNode[] = "n", kOther[] = "m", kJob[] = "j";

v1::AgentMessage Registration(const std::string& node) {
  v1::AgentMessage message;
  v1::Register* info = message.mutable_register_();
  info->set_node(node);
  info->set_instance("i");
  info->set_version(kVersion);
  info->set_device(v1::DEVICE_CPU);
  info->set_slots(1);
  info->set_log_windows(true);
  info->set_preflights(true);
  return message;
}

v1::Job NewJob(absl::Time now) {
  v1::Job job;
  job.set_id(kJob);
  job.set_state(v1::JOB_STATE_QUEUED);
  job.set_revision(1);
  job.set_create_unix_nanos(absl::ToUnixNanos(now));
  v1::JobSpec* spec = job.mutable_spec();
  spec->mutable_resources()->set_nodes(2);
  spec->mutable_resources()->set_ranks_per_node(1);
  spec->mutable_resources()->set_device(v1::DEVICE_CPU);
  spec->mutable_restart()->set_max_attempts(5);
  spec->mutable_checkpoint()->set_dir("/nonexistent/j");
  spec->mutable_train()->set_steps(100);
  spec->mutable_train()->set_global_batch(int64_t{1} << 31);
  return job;
}

// Opened once, because opening takes longer than a case; the job is deleted after each case.
StateStore* SharedStore() {
  static const TempDir dir;
  static const auto opened = SqliteStore::Open(dir.path());
  FSDPD_CHECK(opened.ok());
  return opened->get();
}

ReconcilerOptions Options() {
  ReconcilerOptions options;
  options.own_thread = false;
  options.progress_every = absl::Minutes(1);
  return options;
}

class CoordinatorCase {
 public:
  CoordinatorCase()
      : nodes_(store_->generation(), &clock_),
        logs_(&nodes_),
        reconciler_(Options(),
                    {store_, &nodes_, &rendezvous_, &board_, &clock_, [](const v1::JobSpec& spec, int64_t) {
                       Plan plan;
                       plan.resolved = WithDefaults(spec, nullptr);
                       return plan;
                     }}) {
    FSDPD_CHECK(reconciler_.Load().ok());
    Attach(Registration(kNode), &session_);
    Attach(Registration(kOther), &other_);
    const v1::Job job = NewJob(clock_.Wall());
    FSDPD_CHECK(store_->Insert(job).ok());
    board_.Publish(job);
    reconciler_.Submitted(job);
    reconciler_.RunOnce();  // Starts the job's ledger.
    Turn();
    LogRequest request;
    request.attempt = {kJob, 1};
    tail_ = logs_.Open(request, {kNode});
    v1::TraceJobResponse::Order order;
    order.set_first_step(1);
    order.set_steps(16);
    traced_ = traces_.Open(*board_.Get(kJob), order);
    v1::AgentMessage ready;
    ready.mutable_rank()->set_job_id(kJob);
    ready.mutable_rank()->set_attempt(1);
    ready.mutable_rank()->set_rank(1);
    ready.mutable_rank()->mutable_ready();
    ready.set_stream_generation(other_->outbox()->stream_generation());
    FSDPD_CHECK(other_->Take(&ready).ok());
  }

  // Sends the message with the stream's generation. Another registration opens a new stream.
  void Send(v1::AgentMessage message) {
    if (message.has_register_()) {
      End(&session_);
      message.mutable_register_()->set_node(kNode);
      Attach(message, &session_);
    } else if (session_ != nullptr) {
      message.set_stream_generation(session_->outbox()->stream_generation());
      if (!session_->Take(&message).ok()) End(&session_);
    }
    Turn();
    tail_->Next(absl::ZeroDuration(), &lines_);
  }

  void Check() {
    Turn(absl::Seconds(2));
    const std::optional<v1::Job> job = board_.Get(kJob);
    if (!job.has_value()) return;
    FSDPD_CHECK(job->attempt() >= 0 && job->last_step().step() >= 0 && job->skipped_through() >= 0);
    v1::Job until_now = *job;
    AdvanceLedger(clock_.Wall(), &until_now);
    const double lived = absl::ToDoubleSeconds(clock_.Wall() - absl::FromUnixNanos(job->create_unix_nanos()));
    FSDPD_CHECK(std::abs(SecondsOf(until_now.ledger()) - lived) < 1e-3);
  }

  ~CoordinatorCase() {
    logs_.Close(tail_);
    End(&session_);
    End(&other_);
    FSDPD_CHECK(store_->Delete(kJob).ok());
  }

 private:
  using Session = std::unique_ptr<AgentSession>;
  void Attach(const v1::AgentMessage& first, Session* session) {
    auto opened = AgentSession::Open({&nodes_, &reconciler_, &rendezvous_, &logs_, &traces_, &timelines_},
                                     first, "test", [] {});
    if (opened.ok()) *session = *std::move(opened);
  }
  static void End(Session* session) {
    if (*session != nullptr) (*session)->Close();
    *session = nullptr;
  }
  void Turn(absl::Duration passed = absl::Milliseconds(200)) {
    clock_.Advance(passed);
    for (const Session* each : {&session_, &other_}) {
      v1::CoordinatorMessage message;
      if (*each == nullptr) continue;
      nodes_.Touch(each == &session_ ? kNode : kOther, (*each)->outbox()->stream_generation());
      while ((*each)->outbox()->TryPop(&message)) {
      }
    }
    reconciler_.RunOnce();
  }

  StateStore* const store_ = SharedStore();
  FakeClock clock_;
  NodeRegistry nodes_;
  Rendezvous rendezvous_;
  JobBoard board_;
  LogRelay logs_;
  TraceRelay traces_;
  TimelineBoard timelines_{&board_};
  Reconciler reconciler_;
  Session session_, other_;
  std::shared_ptr<LogTail> tail_;
  std::shared_ptr<TraceWait> traced_;
  std::deque<v1::LogLines::Line> lines_;
};

}  // namespace
}  // namespace fsdpd::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return fsdpd::fuzz::Mutate(fsdpd::v1::AgentMessage::default_instance(), data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdpd::TakeLog([](fsdpd::Severity, absl::string_view) {});
  const auto messages = fsdpd::fuzz::Messages<fsdpd::v1::AgentMessage>(data, size);
  if (messages.size() > 50) return 0;
  fsdpd::fuzz::CoordinatorCase coordinator;
  for (const auto& message : messages) coordinator.Send(message);
  coordinator.Check();
  return 0;
}

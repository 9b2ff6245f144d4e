#include "coordinator/agents/agent_session.h"

#include "base/log.h"
#include "base/version.h"
#include "coordinator/testing/reconciler_case.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

class AgentSessionTest : public ReconcilerCase {
 protected:
  AgentSessionTest() {
    TakeLog([this](Severity severity, absl::string_view line) {
      if (severity == Severity::kWarning) warnings_.emplace_back(line);
    });
  }
  ~AgentSessionTest() override { TakeLog(nullptr); }

  static v1::AgentMessage Registration() {
    v1::AgentMessage message;
    v1::Register* info = message.mutable_register_();
    info->set_node("n");
    info->set_instance("i");
    info->set_version(kVersion);
    info->set_device(v1::DEVICE_CPU);
    info->set_slots(1);
    return message;
  }
  absl::StatusOr<std::unique_ptr<AgentSession>> Attached(const v1::AgentMessage& first) {
    return AgentSession::Open(
        {nodes_.get(), reconciler_.get(), rendezvous_.get(), logs_.get(), &traces_, timelines_.get()}, first,
        "test", [] {});
  }
  // Job "j" runs on the agent's node.
  void Run() {
    logs_ = std::make_unique<LogRelay>(nodes_.get());
    timelines_ = std::make_unique<TimelineBoard>(board_.get());
    auto session = Attached(Registration());
    ASSERT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    reconciler_->RunOnce();
    Submit("j", 1, 1);
    v1::RankUpdate ready = Update("j", 0);
    ready.mutable_ready();
    ASSERT_TRUE(Say(ready).ok());
    ASSERT_EQ(StateOf("j"), v1::JOB_STATE_RUNNING);
  }
  absl::Status Say(const v1::RankUpdate& update) {
    v1::AgentMessage message;
    message.set_stream_generation(session_->outbox()->stream_generation());
    *message.mutable_rank() = update;
    const absl::Status taken = session_->Take(&message);
    reconciler_->RunOnce();
    return taken;
  }

  std::unique_ptr<LogRelay> logs_;
  TraceRelay traces_;
  std::unique_ptr<TimelineBoard> timelines_;
  std::unique_ptr<AgentSession> session_;
  std::vector<std::string> warnings_;
};

TEST_F(AgentSessionTest, DropsInvalidStepAndLogsOnce) {
  Run();
  v1::RankUpdate update = Update("j", 0);
  update.mutable_step()->set_step(INT64_MAX);
  update.mutable_step()->set_loss(2);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_TRUE(Say(update).ok());
  update.mutable_step()->set_step(INT64_MAX - 1);
  EXPECT_TRUE(Say(update).ok()) << "another value is not logged again";
  EXPECT_FALSE(Job("j").has_last_step());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("rank.step.step: out of range (got 9223372036854775807"));
  EXPECT_THAT(warnings_[0], HasSubstr("node=n"));
  update.mutable_step()->set_step(2);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_EQ(Job("j").last_step().step(), 2) << "the stream continues";
}

TEST_F(AgentSessionTest, StoresValidTimelineAndDropsInvalidOne) {
  Run();
  v1::RankUpdate update = Update("j", 0);
  update.mutable_timeline()->set_step(3);
  update.mutable_timeline()->add_runs()->set_start_seconds(-2);  // Next to the earlier step.
  EXPECT_TRUE(Say(update).ok());
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
  ASSERT_TRUE(timelines_->Find("j").has_value());
  EXPECT_EQ(timelines_->Find("j")->timeline().step(), 3);
  update.mutable_timeline()->set_step(4);
  update.mutable_timeline()->mutable_runs(0)->set_seconds(-2);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_EQ(timelines_->Find("j")->timeline().step(), 3);
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("rank.timeline.runs[0].seconds: out of range (got -2"));
}

TEST_F(AgentSessionTest, InvalidExitFailsTheAttempt) {
  Run();
  v1::RankUpdate update = Update("j", 0);
  update.mutable_exit()->set_last_step(-1);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  v1::AgentMessage stopped;
  stopped.set_stream_generation(session_->outbox()->stream_generation());
  stopped.mutable_stopped()->set_job_id("j");
  stopped.mutable_stopped()->set_attempt(1);
  EXPECT_TRUE(session_->Take(&stopped).ok());
  reconciler_->RunOnce();
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_FAILED);
  EXPECT_THAT(Job("j").reason(),
              HasSubstr("rank 0 on node n: invalid report: rank.exit.last_step: out of range (got -1"));
}

// The reader used to wait until the node disconnected.
TEST_F(AgentSessionTest, InvalidLogEndsTheReadAndStopsTheAgent) {
  Run();
  const std::shared_ptr<LogTail> tail = logs_->Open({{"j", 1}, 0, /*follow=*/true}, {"n"});
  v1::CoordinatorMessage order;
  while (session_->outbox()->TryPop(&order) && !order.has_read_logs()) continue;
  ASSERT_TRUE(order.has_read_logs());
  const int64_t request = order.read_logs().request();
  v1::AgentMessage message;
  message.set_stream_generation(session_->outbox()->stream_generation());
  message.mutable_logs()->set_request(request);
  message.mutable_logs()->add_lines()->set_rank(-1);
  EXPECT_TRUE(session_->Take(&message).ok());
  std::deque<v1::LogLines::Line> lines;
  EXPECT_EQ(tail->Next(absl::ZeroDuration(), &lines), LogTail::Got::kEnd);
  EXPECT_EQ(tail->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(tail->status().message(),
              HasSubstr("node n: log lines of the agent: logs.lines[0].rank: out of range"));
  ASSERT_TRUE(session_->outbox()->TryPop(&order));
  EXPECT_TRUE(order.read_logs().stop());
  EXPECT_EQ(order.read_logs().request(), request);
}

TEST_F(AgentSessionTest, InvalidPreflightResultFailsThePreflight) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  v1::AgentMessage registration = Registration();
  registration.mutable_register_()->set_preflights(true);
  auto session = Attached(registration);
  ASSERT_TRUE(session.ok()) << session.status();
  reconciler_->RunOnce();
  ASSERT_TRUE(reconciler_->Preflight("n").ok());
  v1::CoordinatorMessage order;
  while ((*session)->outbox()->TryPop(&order) && !order.has_preflight()) continue;
  ASSERT_TRUE(order.has_preflight());
  v1::AgentMessage message;
  message.set_stream_generation((*session)->outbox()->stream_generation());
  message.mutable_preflight()->set_number(order.preflight().number());
  message.mutable_preflight()->set_seconds(-5);
  EXPECT_TRUE((*session)->Take(&message).ok());
  reconciler_->RunOnce();
  v1::Node shown;
  shown.set_name("n");
  reconciler_->preflights().MarkIn(&shown);
  EXPECT_FALSE(shown.in_preflight());
  ASSERT_TRUE(reconciler_->cordons().Find("n").has_value());
  EXPECT_THAT(reconciler_->cordons().Find("n")->reason(),
              HasSubstr("preflight result: preflight.seconds: out of range (got -5"));
}

TEST_F(AgentSessionTest, ReportOnForeignJobDoesNotFailIt) {
  Run();
  Attach("m", 1);
  Submit("k", 1, 1);
  v1::RankUpdate update = Update("k", 0);
  update.mutable_saved()->set_step(-1);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
}

// A node could read NCCL ids, and fail attempts by setting keys before their ranks did.
TEST_F(AgentSessionTest, RejectsKeysOfAttemptsOnOtherNodes) {
  Run();
  Attach("m", 1);
  Submit("k", 1, 1);
  ASSERT_TRUE(rendezvous_->Set({"k", 1}, "nccl", "id").ok());
  v1::CoordinatorMessage sent;
  while (session_->outbox()->TryPop(&sent)) continue;
  v1::AgentMessage set, get;
  for (v1::AgentMessage* message : {&set, &get})
    message->set_stream_generation(session_->outbox()->stream_generation());
  set.mutable_rendezvous_set()->set_job_id("k");
  set.mutable_rendezvous_set()->set_attempt(1);
  set.mutable_rendezvous_set()->set_key("save/1");
  set.mutable_rendezvous_set()->set_value("evil");
  get.mutable_rendezvous_get()->set_job_id("k");
  get.mutable_rendezvous_get()->set_attempt(1);
  get.mutable_rendezvous_get()->set_key("nccl");
  EXPECT_TRUE(session_->Take(&set).ok());
  EXPECT_TRUE(session_->Take(&get).ok());
  reconciler_->RunOnce();
  EXPECT_FALSE(session_->outbox()->TryPop(&sent)) << sent.ShortDebugString();
  EXPECT_TRUE(rendezvous_->Set({"k", 1}, "save/1", "its own").ok());
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
  ASSERT_THAT(warnings_, SizeIs(1)) << "once per kind";
  EXPECT_THAT(warnings_[0], HasSubstr("kind=rendezvous node=n"));
}

TEST_F(AgentSessionTest, RejectsExitOfForeignRank) {
  Run();
  Attach("m", 1);
  Submit("k", 1, 1);
  v1::RankUpdate update = Update("k", 0);
  update.mutable_exit()->set_exit_code(1);
  EXPECT_TRUE(Say(update).ok());
  EXPECT_EQ(StateOf("k"), v1::JOB_STATE_STARTING);
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("kind=rank node=n"));
}

// After a job had been numbered 1000001, all agents that had hosted it were rejected.
TEST_F(AgentSessionTest, DropsInvalidAttemptButAcceptsAgent) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  v1::AgentMessage message = Registration();
  message.mutable_register_()->add_past_attempts()->set_attempt(kMaxAttempt + 1);
  v1::HostedAttempt* hosted = message.mutable_register_()->add_hosted();
  hosted->set_job_id("j");
  hosted->set_attempt(1);
  hosted->add_ranks(1 << 20);
  EXPECT_TRUE(Attached(message).ok());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("node=n count=2 first_error=job=j attempt=1"));
  EXPECT_TRUE(nodes_->Snapshot()[0].info.hosted().empty());
  EXPECT_TRUE(nodes_->Snapshot()[0].info.past_attempts().empty());
}

// Each was a log line, and a registration of 16 MiB has several 100,000.
TEST_F(AgentSessionTest, RejectsRegistrationWithTooManyAttempts) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  v1::AgentMessage hosted = Registration(), had = Registration();
  for (int i = 0; i <= 4096; ++i) {
    hosted.mutable_register_()->add_hosted()->set_attempt(-1);
    had.mutable_register_()->add_past_attempts()->set_attempt(-1);
  }
  EXPECT_THAT(Attached(hosted).status().message(), HasSubstr("register.hosted: too many attempts (got 4097"));
  EXPECT_THAT(Attached(had).status().message(),
              HasSubstr("register.past_attempts: too many attempts (got 4097"));
  EXPECT_TRUE(warnings_.empty());
}

// The line had 32 MB.
TEST_F(AgentSessionTest, LogLineOfRejectedAttemptIsShort) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  v1::AgentMessage message = Registration();
  message.mutable_register_()->add_hosted()->set_job_id(std::string(1 << 20, '\x01'));
  v1::PastAttempt* had = message.mutable_register_()->add_past_attempts();
  had->set_job_id(std::string(1 << 20, 'j'));
  had->set_attempt(1);
  EXPECT_TRUE(Attached(message).ok());
  EXPECT_TRUE(nodes_->Snapshot()[0].info.past_attempts().empty());
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_LT(warnings_[0].size(), 1000u);
}

// `fsdpctl nodes` failed for all users: the response exceeded kMaxRpcBytes.
TEST_F(AgentSessionTest, RejectsLongOrUnprintableTexts) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  for (const std::string& bad :
       {std::string(1 << 20, 'x'), std::string("0.1\x1b[31m"), std::string("0.1\n")}) {
    v1::AgentMessage version = Registration(), endpoint = Registration(), instance = Registration(),
                     env = Registration();
    version.mutable_register_()->set_version(kVersion + bad);
    endpoint.mutable_register_()->set_metrics_endpoint(bad);
    instance.mutable_register_()->set_instance(bad);
    env.mutable_register_()->add_allowed_env(bad);
    EXPECT_THAT(Attached(version).status().message(), HasSubstr("register.version: "));
    EXPECT_THAT(Attached(endpoint).status().message(), HasSubstr("register.metrics_endpoint: "));
    EXPECT_THAT(Attached(instance).status().message(), HasSubstr("register.instance: "));
    const std::string env_refused(Attached(env).status().message());
    EXPECT_THAT(env_refused, HasSubstr("register.allowed_env: "));
    EXPECT_LT(env_refused.size(), 200u);
  }
  v1::AgentMessage node = Registration(), dirs = Registration(), dir = Registration();
  node.mutable_register_()->set_node(std::string(1 << 20, 'x'));
  EXPECT_LT(Attached(node).status().message().size(), 300u);
  for (int i = 0; i < 129; ++i) dirs.mutable_register_()->add_plugin_dirs("/plugins");
  EXPECT_THAT(Attached(dirs).status().message(), HasSubstr("register.plugin_dirs: too many"));
  dir.mutable_register_()->add_plugin_dirs(std::string(1 << 20, '/'));
  EXPECT_THAT(Attached(dir).status().message(), HasSubstr("register.plugin_dirs: too long"));
  EXPECT_TRUE(nodes_->Snapshot().empty());
}

// Job records of 53 MB: `fsdpctl get` failed for all users.
TEST_F(AgentSessionTest, TextsOfRanksDoNotEnlargeTheRecord) {
  Run();
  const std::string large(1 << 20, 'x');
  v1::RankUpdate saved = Update("j", 0);
  saved.mutable_saved()->set_step(1);
  saved.mutable_saved()->set_path(large);
  EXPECT_TRUE(Say(saved).ok());
  v1::RankUpdate exit = Update("j", 0);
  exit.mutable_exit()->set_exit_code(1);
  exit.mutable_exit()->set_error(large);
  exit.mutable_exit()->set_position(large);
  for (int i = 0; i < 100; ++i) exit.mutable_exit()->add_log_tail(large);
  EXPECT_TRUE(Say(exit).ok());
  EXPECT_EQ(Job("j").failure().error().size(), 4096u);
  EXPECT_LT(Job("j").ByteSizeLong(), 128u << 10);
}

TEST_F(AgentSessionTest, OversizedExitFailsTheAttempt) {
  Run();
  v1::RankUpdate exit = Update("j", 0);
  for (int i = 0; i < 100000; ++i) exit.mutable_exit()->mutable_last_report()->add_ops()->set_bytes(1 << 20);
  EXPECT_TRUE(Say(exit).ok());
  EXPECT_EQ(StateOf("j"), v1::JOB_STATE_STOPPING);
  EXPECT_LT(Job("j").ByteSizeLong(), 128u << 10);
}

TEST_F(AgentSessionTest, LogsForeignAttemptsInOneLine) {
  Run();
  Attach("m", 2);
  Submit("k", 1, 1);
  Submit("l", 1, 1);
  Attach("s2", 1, {{"k", 1}, {"l", 1}});
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("node=s2 count=2 job=k attempt=1"));
}

TEST_F(AgentSessionTest, RejectsInvalidRegistration) {
  logs_ = std::make_unique<LogRelay>(nodes_.get());
  v1::AgentMessage message = Registration();
  message.mutable_register_()->set_memory_bytes_per_slot(-1);
  const auto session = Attached(message);
  EXPECT_TRUE(absl::IsInvalidArgument(session.status()));
  EXPECT_THAT(session.status().message(), HasSubstr("register.memory_bytes_per_slot: out of range (got -1"));
}

}  // namespace
}  // namespace fsdpd

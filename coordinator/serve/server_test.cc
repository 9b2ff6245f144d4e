// Tests of the whole coordinator in one process: the real server on its own port, real gRPC clients, real
// SQLite; only the agents are scripted.
#include "coordinator/serve/server.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <thread>

#include "base/limits.h"
#include "base/version.h"
#include "coordinator/job/job_machine.h"
#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;
using Body = v1::CoordinatorMessage;

using ServerTest = ServedCase;

template <typename Detail>
Detail DetailOf(const grpc::Status& status) {
  google::rpc::Status wire;
  EXPECT_TRUE(wire.ParseFromString(status.error_details()));
  Detail detail;
  for (const auto& any : wire.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  ADD_FAILURE() << "no " << Detail::descriptor()->full_name() << " in " << wire.ShortDebugString();
  return detail;
}

v1::HostedAttempt Hosted(const AttemptRef& ref, const std::vector<int>& ranks) {
  v1::HostedAttempt hosted;
  hosted.set_job_id(ref.job);
  hosted.set_attempt(ref.attempt);
  hosted.mutable_ranks()->Assign(ranks.begin(), ranks.end());
  return hosted;
}

TEST_F(ServerTest, RunsJobFromSubmitToSuccess) {
  const auto agent = Agent("node-0", 2);
  const v1::Job job = SubmitOrDie(TinySpec(1, 2));
  EXPECT_THAT(job.id(), HasSubstr("tiny-"));
  EXPECT_EQ(job.revision(), 1);
  EXPECT_GT(job.memory_plan().peak_bytes(), 0);
  const auto launch = agent->Await(Body::kLaunch);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launch().job_id(), job.id());
  EXPECT_EQ(launch->launch().world_size(), 2);
  EXPECT_EQ(launch->launch().spec().fsdp().strategy(),
            v1::STRATEGY_OPTIM_GRADS_PARAMS);  // The resolved value.
  const AttemptRef ref = {job.id(), 1};
  agent->Ready(ref, 0);
  agent->Ready(ref, 1);
  AwaitState(job.id(), v1::JOB_STATE_RUNNING);
  for (int step = 1; step <= 10; ++step) agent->Step(ref, step, 6.0 - 0.1 * step);
  agent->Exit(ref, 0, 0);
  agent->Exit(ref, 1, 0);
  agent->Stopped(ref);
  const v1::Job done = AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(done.last_step().step(), 10);
  EXPECT_NEAR(done.first_loss(), 5.9, 1e-9);
  EXPECT_GT(done.end_unix_nanos(), done.start_unix_nanos());
  EXPECT_EQ(Get(job.id()).SerializeAsString(), done.SerializeAsString());
}

TEST_F(ServerTest, WatchStreamsStepsAndEndsWithTheJob) {
  const auto agent = Agent("node-0", 1);
  const v1::Job job = SubmitOrDie(TinySpec());
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  const AttemptRef ref = {job.id(), 1};
  agent->Ready(ref, 0);
  AwaitState(job.id(), v1::JOB_STATE_RUNNING);
  grpc::ClientContext context;
  v1::WatchJobRequest request;
  request.set_id(job.id());
  auto reader = stub_->WatchJob(&context, request);
  v1::WatchJobResponse update;
  ASSERT_TRUE(reader->Read(&update));
  EXPECT_TRUE(update.has_job());
  agent->Step(ref, 1, 5.0);
  agent->Step(ref, 2, 4.0);
  agent->Exit(ref, 0, 0);
  std::vector<int64_t> steps;
  v1::JobState last = v1::JOB_STATE_UNSPECIFIED;
  while (reader->Read(&update)) {
    if (update.has_step()) steps.push_back(update.step().step());
    if (update.has_job()) last = update.job().state();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(last, v1::JOB_STATE_SUCCEEDED);
}

TEST_F(ServerTest, FirstFailingRankIsTheReason) {
  const auto a = Agent("node-0", 1), b = Agent("node-1", 1);
  const v1::Job job = SubmitOrDie(TinySpec(2, 1));
  ASSERT_TRUE(a->Await(Body::kLaunch).has_value());
  ASSERT_TRUE(b->Await(Body::kLaunch).has_value());
  const AttemptRef ref = {job.id(), 1};
  a->Exit(ref, 0, 1, "connection closed by peer", absl::Seconds(1));  // Arrives first, happened second.
  b->Exit(ref, 1, 1, "loss is not finite at step 3", absl::Seconds(2));
  ASSERT_TRUE(a->Await(Body::kStop).has_value());
  ASSERT_TRUE(b->Await(Body::kStop).has_value());
  a->Stopped(ref);
  b->Stopped(ref);
  const v1::Job failed = AwaitState(job.id(), v1::JOB_STATE_FAILED);
  EXPECT_EQ(failed.failure().rank(), 1);
  EXPECT_EQ(failed.failure().node(), "node-1");
  EXPECT_EQ(failed.failure().error(), "loss is not finite at step 3");
  ASSERT_EQ(failed.failure().log_tail_size(), 1);
  EXPECT_THAT(failed.reason(), HasSubstr("rank 1 on node-1 failed: loss is not finite"));
}

TEST_F(ServerTest, CancelEndsWhenTheAgentReportsStopped) {
  const auto agent = Agent("node-0", 1);
  v1::Job job = SubmitOrDie(TinySpec());
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  const AttemptRef ref = {job.id(), 1};
  ASSERT_TRUE(Cancel(ref.job, &job).ok());
  EXPECT_EQ(job.state(), v1::JOB_STATE_CANCELLING);
  const auto stop = agent->Await(Body::kStop);
  ASSERT_TRUE(stop.has_value());
  EXPECT_EQ(stop->stop().grace_ms(), 10000);
  agent->Exit(ref, 0, 143);
  EXPECT_EQ(Get(ref.job).state(), v1::JOB_STATE_CANCELLING);
  agent->Stopped(ref);
  const v1::Job cancelled = AwaitState(ref.job, v1::JOB_STATE_CANCELLED);
  ASSERT_TRUE(Cancel(ref.job, &job).ok());  // Repeated: unchanged.
  EXPECT_EQ(job.revision(), cancelled.revision());
}

TEST_F(ServerTest, SecondJobForTheSameSlotsNamesTheFirst) {
  const auto agent = Agent("node-0", 1);
  const v1::Job first = SubmitOrDie(TinySpec());
  const v1::Job second = SubmitOrDie(TinySpec());
  AwaitJob(second.id(),
           [&](const v1::Job& job) { return job.reason().find(first.id()) != std::string::npos; });
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  agent->Exit({first.id(), 1}, 0, 0);
  agent->Stopped({first.id(), 1});
  const auto launch = agent->Await(Body::kLaunch);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launch().job_id(), second.id());
}

TEST_F(ServerTest, MessageOfOtherStreamGenerationEndsTheStream) {
  const auto agent = Agent("node-0", 1);
  v1::AgentMessage message;
  message.set_stream_generation(agent->stream_generation() - 1);
  message.mutable_heartbeat();
  agent->Send(message);
  EXPECT_EQ(agent->AwaitEnd().error_code(), grpc::StatusCode::ABORTED);
}

TEST_F(ServerTest, ReportsOfOlderAttemptsChangeNothing) {
  const auto agent = Agent("node-0", 1);
  v1::JobSpec spec = TinySpec();
  spec.mutable_restart()->set_max_attempts(2);
  const v1::Job job = SubmitOrDie(spec);
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  agent->Exit({job.id(), 1}, 0, 1, "first attempt");
  ASSERT_TRUE(agent->Await(Body::kStop).has_value());
  agent->Stopped({job.id(), 1});
  const auto launch = agent->Await(Body::kLaunch);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launch().attempt(), 2);
  agent->Exit({job.id(), 1}, 0, 1, "stale");
  agent->Step({job.id(), 1}, 7, 1.0);
  agent->Ready({job.id(), 2}, 0);
  const v1::Job running = AwaitState(job.id(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(running.attempt(), 2);
  EXPECT_FALSE(running.has_last_step());
  EXPECT_EQ(running.failure().error(), "first attempt");
}

TEST_F(ServerTest, RejectsSecondLiveAgentOfAName) {
  const auto first = Agent("node-0", 1);
  ScriptedAgent second(server_->address(), {"node-0", 1, "another process", {}, 0});
  const grpc::Status end = second.AwaitEnd();
  EXPECT_EQ(end.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(end).domain(), "fsdpd");
}

TEST_F(ServerTest, RunningJobSurvivesCoordinatorRestart) {
  auto agent = Agent("node-0", 2);
  const v1::Job job = SubmitOrDie(TinySpec(1, 2));
  const AttemptRef ref = {job.id(), 1};
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  agent->Ready(ref, 0);
  agent->Ready(ref, 1);
  AwaitState(job.id(), v1::JOB_STATE_RUNNING);
  const int64_t old_generation = agent->stream_generation();
  server_.reset();
  EXPECT_FALSE(agent->AwaitEnd().ok());
  StartServer();
  EXPECT_EQ(Get(job.id()).state(), v1::JOB_STATE_RUNNING);
  agent = Agent("node-0", 2, {Hosted(ref, {0, 1})});
  EXPECT_GT(agent->stream_generation(), old_generation);
  agent->Step(ref, 5, 3.0);
  agent->Exit(ref, 0, 0);
  agent->Exit(ref, 1, 0);
  const v1::Job done = AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  EXPECT_EQ(done.attempt(), 1);
  EXPECT_EQ(done.last_step().step(), 5);
}

TEST_F(ServerTest, UnstoredCheckpointIsReportedAgainAfterRestart) {
  auto agent = Agent("node-0", 1);
  const v1::Job job = SubmitOrDie(TinySpec());
  const AttemptRef ref = {job.id(), 1};
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  agent->Ready(ref, 0);
  agent->Saved(ref, 5);
  AwaitJob(job.id(), [](const v1::Job& now) { return now.checkpoints_size() == 1; });
  server_.reset();
  StartServer();
  agent = Agent("node-0", 1, {Hosted(ref, {0})});
  agent->Saved(ref, 5);  // As an agent does on a new stream.
  agent->Saved(ref, 10);
  agent->Exit(ref, 0, 0);
  const v1::Job done = AwaitState(job.id(), v1::JOB_STATE_SUCCEEDED);
  ASSERT_EQ(done.checkpoints_size(), 2);
  EXPECT_EQ(done.checkpoints(0).step(), 5);
  EXPECT_EQ(done.checkpoints(1).step(), 10);
}

TEST_F(ServerTest, QueuedJobSurvivesRestartAndIsLaunched) {
  const v1::Job job = SubmitOrDie(TinySpec());
  AwaitJob(job.id(),
           [](const v1::Job& j) { return j.reason().find("no agent is connected") != std::string::npos; });
  server_.reset();
  StartServer(/*reattach_grace=*/absl::ZeroDuration());
  const auto agent = Agent("node-0", 1);
  const auto launch = agent->Await(Body::kLaunch);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launch().job_id(), job.id());
}

TEST_F(ServerTest, RepeatedSubmitIsOneJobEvenAfterRestart) {
  v1::Job first, again;
  ASSERT_TRUE(Submit(TinySpec(), "request-1", &first).ok());
  ASSERT_TRUE(Submit(TinySpec(), "request-1", &again).ok());
  EXPECT_EQ(first.id(), again.id());
  server_.reset();
  StartServer();
  ASSERT_TRUE(Submit(TinySpec(), "request-1", &again).ok());
  EXPECT_EQ(first.id(), again.id());
  const grpc::Status other = Submit(TinySpec(1, 2), "request-1", &again);
  EXPECT_EQ(other.error_code(), grpc::StatusCode::ALREADY_EXISTS);
  EXPECT_THAT(other.error_message(), HasSubstr(first.id()));
  const grpc::Status too_long = Submit(TinySpec(), std::string(65, 'x'), &again);
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(too_long).field_violations(0).field(), "request_id");
  const grpc::Status forged =
      Submit(TinySpec(), "a\nstate: failed", &again);  // The name would be a line of its own in the output.
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(forged).field_violations(0).field(), "request_id");
}

TEST_F(ServerTest, RanksOfTwoNodesMeetInRendezvous) {
  const auto a = Agent("node-0", 1), b = Agent("node-1", 1);
  const v1::Job job = SubmitOrDie(TinySpec(2, 1));
  const AttemptRef ref = {job.id(), 1};
  ASSERT_TRUE(a->Await(Body::kLaunch).has_value());
  ASSERT_TRUE(b->Await(Body::kLaunch).has_value());
  b->GetKey(ref, "address/0", 41);  // Waits for the other node.
  a->SetKey(ref, "address/0", "127.0.0.1:4000");
  const auto value = b->Await(Body::kRendezvousValue);
  ASSERT_TRUE(value.has_value());
  EXPECT_EQ(value->rendezvous_value().request(), 41);
  EXPECT_EQ(value->rendezvous_value().value(), "127.0.0.1:4000");
  b->SetKey(ref, "address/0", "another");
  ASSERT_TRUE(a->Await(Body::kStop).has_value());
  EXPECT_THAT(Get(job.id()).failure().error(), HasSubstr("set twice"));
}

TEST_F(ServerTest, RejectsBadSpecWithAllViolations) {
  v1::JobSpec spec = TinySpec();
  spec.set_name("Not A Name");
  spec.mutable_train()->set_steps(0);
  spec.mutable_data()->set_sequence_length(0);
  v1::Job job;
  const grpc::Status status = Submit(spec, "", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).reason(), "INVALID_SPEC");
  std::set<std::string> fields;
  const auto bad = DetailOf<google::rpc::BadRequest>(status);
  for (const auto& violation : bad.field_violations()) {
    fields.insert(violation.field());
    EXPECT_FALSE(violation.description().empty());
  }
  EXPECT_THAT(fields, ::testing::IsSupersetOf({"name", "train.steps", "data.sequence_length"}));
  // Validate returns the same violations in its response.
  grpc::ClientContext context;
  v1::ValidateJobRequest request;
  *request.mutable_spec() = spec;
  v1::ValidateJobResponse response;
  ASSERT_TRUE(stub_->ValidateJob(&context, request, &response).ok());
  EXPECT_GE(response.violations_size(), 3);
}

TEST_F(ServerTest, RejectsUnknownEnumNumbers) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_fsdp()->set_strategy(static_cast<v1::Strategy>(77));
  v1::Job job;
  const grpc::Status status = Submit(spec, "", &job);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(status).field_violations(0).field(), "fsdp.strategy");
}

TEST_F(ServerTest, PlansOnceAndLaunchesAllNodesWithTheSamePlan) {
  constexpr int64_t kLarge = int64_t{1} << 30;
  std::map<std::string, std::unique_ptr<ScriptedAgent>> agents;
  for (const auto& [node, bytes] :
       std::map<std::string, int64_t>{{"a-small", 4096}, {"b", kLarge}, {"c", 2 * kLarge}}) {
    agents[node] = std::make_unique<ScriptedAgent>(server_->address(),
                                                   ScriptedAgent::Options{node, 1, "first", {}, bytes});
    ASSERT_TRUE(agents[node]->AwaitWelcome());
  }
  const v1::Job job = SubmitOrDie(TinySpec(2, 1));
  EXPECT_EQ(job.resolved().resources().memory_budget_bytes(), kLarge);
  EXPECT_FALSE(job.spec().resources().has_memory_budget_bytes()) << "as submitted";
  for (const char* node : {"b", "c"}) {
    const auto launch = agents[node]->Await(Body::kLaunch);
    ASSERT_TRUE(launch.has_value());
    EXPECT_EQ(launch->launch().spec().SerializeAsString(), job.resolved().SerializeAsString());
    EXPECT_EQ(launch->launch().memory_plan().SerializeAsString(), job.memory_plan().SerializeAsString());
  }
  EXPECT_FALSE(agents["a-small"]->HasReceived(Body::kLaunch));
  v1::Job refused;
  EXPECT_EQ(Submit(TinySpec(3, 1), "", &refused).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ServerTest, SixtyViolationsFitInTheError) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_data()->clear_synthetic();
  for (int i = 0; i < 60; ++i) spec.mutable_data()->add_tokens();  // Without a path.
  v1::Job job;
  grpc::ClientContext context;
  v1::PlanJobRequest request;
  *request.mutable_spec() = spec;
  v1::PlanJobResponse response;
  for (const grpc::Status& status : {Submit(spec, "", &job), stub_->PlanJob(&context, request, &response)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    const auto violations = DetailOf<v1::SpecViolations>(status);
    EXPECT_GE(violations.violations_size() + violations.more(), 60);
    EXPECT_FALSE(violations.violations(0).fix().empty());
    EXPECT_FALSE(DetailOf<google::rpc::ErrorInfo>(status).metadata().at("rules").empty());
  }
}

TEST_F(ServerTest, RejectsOversizedSpec) {
  v1::JobSpec spec = TinySpec();
  spec.mutable_checkpoint()->set_dir(std::string(kMaxJobSpecBytes, 'x'));
  v1::Job job;
  EXPECT_EQ(DetailOf<google::rpc::BadRequest>(Submit(spec, "", &job)).field_violations(0).field(), "spec");
}

TEST_F(ServerTest, ListsNewestFirstAndRejectsBadPageTokens) {
  std::vector<std::string> ids;
  for (int i = 0; i < 7; ++i) ids.insert(ids.begin(), SubmitOrDie(TinySpec()).id());
  std::vector<std::string> seen;
  v1::ListJobsRequest request;
  request.set_page_size(3);
  do {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    ASSERT_TRUE(stub_->ListJobs(&context, request, &response).ok());
    EXPECT_LE(response.jobs_size(), 3);
    for (const v1::Job& job : response.jobs()) seen.push_back(job.id());
    request.set_page_token(response.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_EQ(seen, ids);

  const auto field_of = [&](const v1::ListJobsRequest& bad) {
    grpc::ClientContext context;
    v1::ListJobsResponse response;
    return DetailOf<google::rpc::BadRequest>(stub_->ListJobs(&context, bad, &response))
        .field_violations(0)
        .field();
  };
  v1::ListJobsRequest bad;
  bad.set_page_token("rubbish");
  EXPECT_EQ(field_of(bad), "page_token");
  bad.Clear();
  bad.set_page_size(-1);
  EXPECT_EQ(field_of(bad), "page_size");
  bad.Clear();
  bad.add_states(static_cast<v1::JobState>(42));
  EXPECT_EQ(field_of(bad), "states[0]");
}

TEST_F(ServerTest, UnknownJobsAreNotFoundByAnyMethod) {
  v1::Job job;
  EXPECT_EQ(Cancel("nope", &job).error_code(), grpc::StatusCode::NOT_FOUND);
  grpc::ClientContext get, watch, tail;
  v1::GetJobRequest get_request;
  v1::GetJobResponse get_response;
  get_request.set_id("nope");
  const grpc::Status status = stub_->GetJob(&get, get_request, &get_response);
  EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).reason(), "JOB_NOT_FOUND");
  v1::WatchJobRequest watch_request;
  watch_request.set_id("nope");
  v1::WatchJobResponse update;
  auto watcher = stub_->WatchJob(&watch, watch_request);
  EXPECT_FALSE(watcher->Read(&update));
  EXPECT_EQ(watcher->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
  v1::TailLogsRequest tail_request;
  tail_request.set_id("nope");
  v1::TailLogsResponse line;
  auto tailer = stub_->TailLogs(&tail, tail_request);
  EXPECT_FALSE(tailer->Read(&line));
  EXPECT_EQ(tailer->Finish().error_code(), grpc::StatusCode::NOT_FOUND);
}

// The agent registers like one of an older release.
TEST_F(ServerTest, DoesNotRequestTracesFromOldAgents) {
  const auto agent = Agent("node-0", 1);
  v1::JobSpec spec = TinySpec();
  spec.mutable_train()->set_steps(1'000'000);
  const v1::Job job = SubmitOrDie(spec);
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  agent->Ready({job.id(), 1}, 0);
  AwaitState(job.id(), v1::JOB_STATE_RUNNING);
  agent->Step({job.id(), 1}, 1, 5);
  while (Get(job.id()).last_step().step() == 0) std::this_thread::yield();
  for (const int64_t steps : {0, 1}) {
    grpc::ClientContext context;
    v1::TraceJobRequest request;
    request.set_id(job.id());
    request.set_steps(steps);
    const grpc::Status status = stub_->TraceJob(&context, request)->Finish();
    EXPECT_EQ(DetailOf<google::rpc::ErrorInfo>(status).reason(), "AGENT_TOO_OLD") << status.error_message();
  }
}

TEST_F(ServerTest, ListsNodesAndVersion) {
  const auto agent = Agent("node-0", 3);
  grpc::ClientContext nodes_context, version_context;
  v1::ListNodesResponse nodes;
  ASSERT_TRUE(stub_->ListNodes(&nodes_context, v1::ListNodesRequest(), &nodes).ok());
  ASSERT_EQ(nodes.nodes_size(), 1);
  EXPECT_TRUE(nodes.nodes(0).connected());
  EXPECT_EQ(nodes.nodes(0).slots(), 3);
  EXPECT_THAT(nodes.nodes(0).address(), HasSubstr("127.0.0.1:"));
  v1::GetVersionResponse version;
  ASSERT_TRUE(stub_->GetVersion(&version_context, v1::GetVersionRequest(), &version).ok());
  EXPECT_EQ(version.version(), kVersion);
}

TEST_F(ServerTest, StopsWithOpenStreams) {
  const auto agent = Agent("node-0", 1);
  const v1::Job job = SubmitOrDie(TinySpec());
  ASSERT_TRUE(agent->Await(Body::kLaunch).has_value());
  grpc::ClientContext watch_context, tail_context;
  v1::WatchJobRequest watch;
  watch.set_id(job.id());
  auto watcher = stub_->WatchJob(&watch_context, watch);
  v1::WatchJobResponse update;
  ASSERT_TRUE(watcher->Read(&update));
  v1::TailLogsRequest tail;
  tail.set_id(job.id());
  tail.set_follow(true);
  auto tailer = stub_->TailLogs(&tail_context, tail);
  ASSERT_TRUE(agent->Await(Body::kReadLogs).has_value());
  server_->Stop();
  while (watcher->Read(&update)) {
  }
  EXPECT_EQ(watcher->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  server_.reset();
  EXPECT_FALSE(agent->AwaitEnd().ok());
}

TEST_F(ServerTest, AddressInUseIsAClearError) {
  const TempDir other;
  ServerOptions options;
  options.listen = server_->address();
  options.state_dir = other.path();
  const auto second = Server::Start(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
}

}  // namespace
}  // namespace fsdpd

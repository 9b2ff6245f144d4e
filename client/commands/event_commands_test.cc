// Tests of `events` and `drain` with a scripted coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Event Failed(int64_t sequence) {
  v1::Event event;
  event.set_sequence(sequence);
  event.set_unix_nanos(1'800'000'000'000'000'000);
  event.set_kind(v1::EVENT_KIND_ATTEMPT_FAILED);
  event.set_job("tiny-k3x9q2");
  event.set_attempt(2);
  event.set_node("node-7");
  event.set_cause(v1::FAILURE_CAUSE_HANG);
  event.set_message("nothing moved");
  return event;
}

using EventCommandsTest = ServedCommandCase;

TEST_F(EventCommandsTest, EventsReadsAllPages) {
  std::vector<std::string> tokens;
  server_.on_events = [&](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    EXPECT_EQ(request.job(), "tiny-k3x9q2");
    EXPECT_GT(request.since_unix_nanos(), 0);
    tokens.push_back(request.page_token());
    *response->add_events() = Failed(static_cast<int64_t>(tokens.size()));
    if (tokens.size() == 1) response->set_next_page_token("more");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"events", "--job", "tiny-k3x9q2", "--since", "15m"}), kExitOk) << err_;
  EXPECT_THAT(tokens, ElementsAre("", "more"));
  EXPECT_EQ(
      out_,
      "1  2027-01-15 08:00:00  attempt-failed    tiny-k3x9q2 attempt 2 on node-7: (hang) nothing moved\n"
      "2  2027-01-15 08:00:00  attempt-failed    tiny-k3x9q2 attempt 2 on node-7: (hang) nothing moved\n");
}

TEST_F(EventCommandsTest, EventsPrintsJsonLines) {
  server_.on_events = [&](const v1::ListEventsRequest&, v1::ListEventsResponse* response) {
    *response->add_events() = Failed(3);
    *response->add_events() = Failed(4);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"events", "-o", "json"}), kExitOk) << err_;
  EXPECT_EQ(std::count(out_.begin(), out_.end(), '\n'), 2) << out_;
  EXPECT_THAT(out_, HasSubstr("}\n{"));
}

TEST_F(EventCommandsTest, WatchResumesAfterNewestCursor) {
  server_.on_events = [&](const v1::ListEventsRequest&, v1::ListEventsResponse* response) {
    *response->add_events() = Failed(3);
    response->set_cursor(5);
    return grpc::Status::OK;
  };
  std::vector<int64_t> cursors;
  server_.on_watch_events = [&](const v1::WatchEventsRequest& request, grpc::ServerContext*,
                                grpc::ServerWriter<v1::WatchEventsResponse>* writer) {
    cursors.push_back(request.after());
    if (cursors.size() == 3) return grpc::Status(grpc::StatusCode::OUT_OF_RANGE, "the oldest is 900");
    v1::WatchEventsResponse update;
    *update.mutable_event() = Failed(request.after() + 1);
    update.set_cursor(request.after() + 1);
    writer->Write(update);
    update.clear_event();
    update.set_cursor(request.after() + 10);
    writer->Write(update);
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "the coordinator is stopping");
  };
  EXPECT_EQ(Run({"events", "-w"}), kExitFailed);
  EXPECT_THAT(cursors, ElementsAre(5, 15, 25));
  EXPECT_THAT(out_, HasSubstr("\n6  "));
  EXPECT_THAT(out_, HasSubstr("\n16  "));
  EXPECT_THAT(err_, HasSubstr("the oldest is 900"));
}

TEST_F(EventCommandsTest, DrainWaitsUntilEmpty) {
  bool forced = false;
  server_.on_drain = [&](const v1::DrainNodeRequest& request, v1::DrainNodeResponse* response) {
    forced = request.force();
    response->mutable_node()->set_connected(true);
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->mutable_cordon()->mutable_drain()->add_jobs("tiny-k3x9q2");
    return grpc::Status::OK;
  };
  server_.on_nodes = [&](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_name("node-7");
    response->mutable_nodes(0)->set_connected(true);
    response->mutable_nodes(0)->mutable_cordon()->mutable_drain()->set_empty_unix_nanos(1);
    return grpc::Status::OK;
  };
  server_.on_events = [&](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    EXPECT_EQ(request.node(), "node-7");
    v1::Event* paused = response->add_events();
    paused->set_kind(v1::EVENT_KIND_DRAINED);
    paused->set_job("tiny-k3x9q2");
    paused->set_message("saves and leaves");
    v1::Event* left = response->add_events();
    left->set_kind(v1::EVENT_KIND_RANKS_EXITED);
    left->set_job("tiny-k3x9q2");
    left->set_message("paused after step 4, which is saved; 5 steps after it are lost");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"drain", "node-7"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 is being drained; remaining jobs: tiny-k3x9q2\n");
  EXPECT_FALSE(forced);
  EXPECT_EQ(Run({"drain", "node-7", "--force", "--wait"}), kExitOk) << err_;
  EXPECT_EQ(out_, "node-7 is empty\n");
  EXPECT_EQ(err_,
            "waiting for tiny-k3x9q2\n"
            "tiny-k3x9q2: paused after step 4, which is saved; 5 steps after it are lost\n");
  EXPECT_TRUE(forced);
}

TEST_F(EventCommandsTest, DrainReportsBlockersUntilTimeout) {
  server_.on_drain = [&](const v1::DrainNodeRequest& request, v1::DrainNodeResponse* response) {
    response->mutable_node()->set_name(request.node());
    response->mutable_node()->set_connected(true);
    response->mutable_node()->mutable_cordon()->mutable_drain()->add_jobs("tiny-k3x9q2");
    return grpc::Status::OK;
  };
  int looks = 0;
  server_.on_nodes = [&](const v1::ListNodesRequest&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_name("node-7");
    response->mutable_nodes(0)->mutable_cordon()->mutable_drain()->add_jobs("tiny-k3x9q2");
    if (looks == 2) response->mutable_nodes(0)->mutable_cordon()->mutable_drain()->set_empty_unix_nanos(1);
    return grpc::Status::OK;
  };
  server_.on_get = [&](const v1::GetJobRequest&, v1::GetJobResponse* response) {
    response->mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    response->mutable_job()->set_reason("all 2 ranks run");
    if (++looks == 1) return grpc::Status::OK;
    response->mutable_job()->mutable_failed_checkpoint()->set_step(40);
    response->mutable_job()->mutable_failed_checkpoint()->set_error("the disk is full");
    return grpc::Status::OK;
  };
  server_.on_events = [](const v1::ListEventsRequest&, v1::ListEventsResponse*) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "events are for viewers");
  };
  EXPECT_EQ(Run({"drain", "node-7", "--wait"}), kExitOk)
      << "the node is empty, even if its events cannot be read";
  EXPECT_EQ(err_,
            "waiting for tiny-k3x9q2 (running: all 2 ranks run)\n"
            "node-7 is lost; its remaining ranks are unknown until its agent reconnects\n"
            "waiting for tiny-k3x9q2: its checkpoint of step 40 could not be written: the disk is full; "
            "fix the cause, or run `fsdpctl drain node-7 --force` to move it without saving\n"
            "fsdpctl: cannot read the events of the drain: events are for viewers\n");
  EXPECT_EQ(Run({"drain", "node-7", "--wait", "--timeout", "0.000001"}), kExitTimeout);
  EXPECT_THAT(err_, HasSubstr("node-7 is not empty after --timeout; the drain continues [TIMEOUT]\n"));
}

TEST_F(EventCommandsTest, ReportsMissingAndCompletesIds) {
  server_.on_get = [](const v1::GetJobRequest&, v1::GetJobResponse*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no such job", "JOB_NOT_FOUND");
  };
  server_.on_list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    response->add_jobs()->set_id("tiny-k3x9q2");
    return grpc::Status::OK;
  };
  server_.on_nodes = [](const v1::ListNodesRequest&, v1::ListNodesResponse*) { return grpc::Status::OK; };
  server_.on_events = [](const v1::ListEventsRequest& request, v1::ListEventsResponse* response) {
    if (request.job() == "tiny-k3x9q2" || request.job() == "deleted-1" || request.node() == "node-old")
      *response->add_events() = Failed(3);
    // A gap in the events of an existing job, and one of many jobs, which matches every request.
    for (const char* job : {"busy-1", ""}) {
      response->add_events()->set_kind(v1::EVENT_KIND_EVENTS_DELETED);
      response->mutable_events()->rbegin()->set_job(job);
    }
    response->set_cursor(7);
    return grpc::Status::OK;
  };
  for (const std::vector<std::string>& there : std::vector<std::vector<std::string>>{
           {"events", "--job", "tiny"}, {"events", "--job", "deleted-1"}, {"events", "--node", "node-old"}}) {
    EXPECT_EQ(Run(there), kExitOk) << err_;
    EXPECT_THAT(out_, HasSubstr("nothing moved")) << there[2];
  }
  EXPECT_EQ(Run({"events", "--job", "nosuch"}), kExitNotFound);
  EXPECT_EQ(Run({"events", "--node", "nosuch"}), kExitNotFound);
  EXPECT_THAT(err_, HasSubstr("[NODE_NOT_FOUND]\n"));
  EXPECT_EQ(Run({"events", "--after", "7"}), kExitOk) << err_;
  EXPECT_EQ(Run({"events", "--after", "8"}), kExitNotFound);
  EXPECT_THAT(err_, HasSubstr("event 8 does not exist yet; the newest is 7"));
}

TEST_F(EventCommandsTest, RejectsInvalidFlags) {
  EXPECT_EQ(Run({"events", "--since", "yesterday"}), kExitUsage);
  EXPECT_THAT(err_, HasSubstr("'yesterday' is not a time"));
  EXPECT_EQ(Run({"events", "--after", "x"}), kExitUsage);
  EXPECT_EQ(Run({"drain", "node-7", "--grace", "0"}), kExitUsage);
  EXPECT_EQ(Run({"drain"}), kExitUsage);
}

}  // namespace
}  // namespace fsdpd

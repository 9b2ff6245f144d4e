// Tests of get: exit code, stdout and stderr.
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "client/connect/outcome.h"
#include "client/testing/listed_jobs_case.h"

namespace fsdpd {
namespace {

using GetCommandTest = ListedJobsCase;

TEST_F(GetCommandTest, GetReadsAllPages) {
  server_.on_list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    EXPECT_EQ(request.states_size(), 1);
    EXPECT_EQ(request.states(0), v1::JOB_STATE_RUNNING);
    response->add_jobs()->set_id(request.page_token().empty() ? "new-1" : "old-1");
    if (request.page_token().empty()) response->set_next_page_token("2");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"get", "--state", "running"}), 0);
  EXPECT_LT(out_.find("new-1"), out_.find("old-1"));
  EXPECT_EQ(Run({"get", "--state", "running", "-o", "json"}), 0);
  EXPECT_EQ(out_.find("{\n  \"jobs\": [{\n    \"id\": \"new-1\""), 0u) << out_;
}

TEST_F(GetCommandTest, GetShowsExistingJobsDespiteMissingOne) {
  server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    if (request.id() == "nothere") {
      return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'nothere'", "JOB_NOT_FOUND");
    }
    response->mutable_job()->set_id(request.id());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"get", "here-1", "nothere", "here-2"}), kExitNotFound);
  EXPECT_NE(out_.find("here-1"), std::string::npos) << out_;
  EXPECT_NE(out_.find("here-2"), std::string::npos) << out_;
  EXPECT_EQ(err_, "fsdpctl: no job 'nothere'; `fsdpctl get` lists the jobs [JOB_NOT_FOUND]\n");
}

TEST_F(GetCommandTest, GetAcceptsAllStates) {
  server_.on_list = [](const v1::ListJobsRequest&, v1::ListJobsResponse*) { return grpc::Status::OK; };
  for (int i = 0; i < v1::JobState_descriptor()->value_count(); ++i) {
    std::string state = v1::JobState_descriptor()->value(i)->name().substr(strlen("JOB_STATE_"));
    for (char& letter : state) letter = absl::ascii_tolower(letter);
    if (state != "unspecified") EXPECT_EQ(Run({"get", "--state", state}), kExitOk) << state << err_;
  }
  EXPECT_EQ(Run({"get", "--state", "unspecified"}), kExitUsage);
}

TEST_F(GetCommandTest, GetPrintsNamesPathsAndSpecs) {
  EXPECT_EQ(Run({"get", "-o", "name"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\ntiny-a1\nbig-c3\n");
  EXPECT_EQ(
      Run({"get", "-o", "jsonpath={range .jobs[?(@.state==\"running\")]}{.id}={.last_step.loss} {end}"}),
      kExitOk);
  EXPECT_EQ(out_, "tiny-b2=2 big-c3=12 \n");
  EXPECT_EQ(Run({"get", "tiny-b2", "-o", "jsonpath={.state}"}), kExitOk);
  EXPECT_EQ(out_, "running\n");
  EXPECT_EQ(Run({"get", "tiny-b2", "-o", "spec"}), kExitOk);
  EXPECT_EQ(out_, "name: a\nmodel:\n  preset: tiny\n");
  EXPECT_EQ(Run({"get", "-o", "wide"}), kExitOk);
  EXPECT_NE(out_.find("TOKENS/S"), std::string::npos) << out_;
}

TEST_F(GetCommandTest, GetPrintsStepTimeline) {
  server_.on_timeline = [](const v1::GetStepTimelineRequest& request, v1::GetStepTimelineResponse* response) {
    if (request.id() != "tiny-b2")
      return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no step of it was told of",
                                "STEP_TIMELINE_NOT_FOUND");
    response->set_attempt(1);
    response->mutable_timeline()->set_step(20);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"get", "tiny-b2", "--timeline"}), kExitOk);
  EXPECT_NE(out_.find("step 20 of attempt 1"), std::string::npos) << out_;
  EXPECT_EQ(Run({"get", "tiny-b2", "--timeline", "-o", "jsonpath={.timeline.step}"}), kExitOk);
  EXPECT_EQ(out_, "20\n");
  EXPECT_EQ(Run({"get", "big-c3", "--timeline"}), kExitNotFound);
  EXPECT_NE(err_.find("no step of it was told of"), std::string::npos) << err_;
  EXPECT_EQ(Run({"get", "--timeline"}), kExitUsage);
  EXPECT_NE(err_.find("fsdpctl get JOB --timeline"), std::string::npos) << err_;
}

TEST_F(GetCommandTest, RejectsInvalidOutputWithoutCoordinator) {
  server_.Stop();
  for (const std::vector<std::string>& wrong :
       std::vector<std::vector<std::string>>{{"get", "-o", "jsonpath={.id"},
                                             {"get", "-o", "tabel"},
                                             {"cancel", "x", "-o", "wide"},
                                             {"plan", "-f", "x", "-o", "spec"},
                                             {"get", "--sort-by", "{.x"},
                                             {"get", "j", "--order-by", "end_time"},
                                             {"get", "j", "--state", "queued"},
                                             {"get", "j", "-l", "team=a"},
                                             {"get", "j", "--project", "red"},
                                             {"get", "j", "--array", "a"},
                                             {"get", "j", "--all-projects"},
                                             {"get", "j", "-o", "spec", "-w"},
                                             {"get", "--steps", "j", "--order-by", "end_time"},
                                             {"get", "--timeline", "j", "--steps"},
                                             {"get", "--timeline", "j", "-o", "csv"},
                                             {"wait", "x", "--for", "done"},
                                             {"logs", "x", "--since", "soon"},
                                             {"logs", "x", "--grep", "("}})
    EXPECT_EQ(Run(wrong), kExitUsage) << wrong[0] << err_;
}

TEST_F(GetCommandTest, RejectsListFlagsWithJob) {
  EXPECT_EQ(Run({"get", "tiny-b2", "--state", "queued"}), kExitUsage);
  EXPECT_NE(err_.find("--state"), std::string::npos) << err_;
  EXPECT_NE(err_.find("; remove one of them"), std::string::npos) << err_;
  EXPECT_EQ(Run({"get", "tiny-b2", "-o", "spec", "-w"}), kExitUsage);
  EXPECT_NE(err_.find("-o spec is not supported with -w, because a spec never changes; remove -w"),
            std::string::npos)
      << err_;
}

TEST_F(GetCommandTest, RejectsUnknownJsonPathField) {
  EXPECT_EQ(Run({"get", "-o", "jsonpath={.jobs[*].sate}"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean state?"), std::string::npos) << err_;
}

TEST_F(GetCommandTest, GetSortsAndLimits) {
  EXPECT_EQ(Run({"get", "-o", "name", "--sort-by", "last_step.loss"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\nbig-c3\ntiny-a1\n") << "numeric order, jobs without a value last";
  EXPECT_EQ(Run({"get", "--sort-by", "age"}), kExitUsage);
  EXPECT_EQ(err_.find("fsdpctl: --sort-by: unknown field 'age'"), 0u) << err_;
  EXPECT_EQ(Run({"get", "-o", "name", "--sort-by=-last_step.loss", "--limit", "1"}), kExitOk);
  EXPECT_EQ(out_, "big-c3\n");
  EXPECT_EQ(Run({"get", "-o", "name", "--limit", "2"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\ntiny-a1\n");
}

TEST_F(GetCommandTest, CompletesUniqueIdPrefix) {
  EXPECT_EQ(Run({"get", "big", "-o", "name"}), kExitOk);
  EXPECT_EQ(out_, "big-c3\n");
  EXPECT_EQ(Run({"get", "tiny", "-o", "name"}), kExitNotFound);
  EXPECT_NE(err_.find("'tiny' is ambiguous: it matches 2 jobs: tiny-b2, tiny-a1"), std::string::npos) << err_;
  EXPECT_EQ(Run({"get", "huge"}), kExitNotFound);
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "big", "tiny-b2"}), kExitOk) << err_;
  EXPECT_EQ(out_, "big-c3 cancelling\ntiny-b2 cancelling\n");
  EXPECT_EQ(Run({"cancel", "tiny"}), kExitNotFound);
}

TEST_F(GetCommandTest, UnknownIdDoesNotListAllJobs) {
  std::vector<std::string> prefixes;
  int pages = 0;
  server_.on_list = [&](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    prefixes.push_back(request.id_prefix());
    for (int i = 0; i < 4; ++i) response->add_jobs()->set_id(absl::StrCat("tiny-", pages, i));
    response->set_next_page_token(absl::StrCat(++pages));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "tiny"}), kExitNotFound);
  EXPECT_NE(err_.find("'tiny' is ambiguous: it matches more than 5 jobs: "), std::string::npos) << err_;
  EXPECT_EQ(prefixes, (std::vector<std::string>{"tiny", "tiny"}));
  prefixes.clear();
  EXPECT_EQ(Run({"get", "no\"id"}), kExitNotFound);
  EXPECT_TRUE(prefixes.empty());
  server_.Stop();
}

TEST_F(GetCommandTest, WatchPrintsChangedJobs) {
  std::atomic<int> calls{0};
  server_.on_list = [&](const auto&, v1::ListJobsResponse* response) {
    const int asked = ++calls;
    v1::Job* job = response->add_jobs();
    job->set_id("stays-1");
    job->set_revision(1);
    job = response->add_jobs();
    job->set_id("moves-1");
    job->set_revision(asked == 1 ? 1 : 2);
    job->set_state(asked == 1 ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_RUNNING);
    if (asked == 3) interrupt_.Fire();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"get", "-w"}), kExitInterrupted);
  EXPECT_EQ(out_.find("ID "), out_.rfind("ID ")) << "one header\n" << out_;
  EXPECT_EQ(out_.find("stays-1"), out_.rfind("stays-1")) << out_;
  EXPECT_LT(out_.find("moves-1  queued"), out_.find("moves-1  running")) << out_;
  server_.Stop();  // Before `calls` is destroyed.
}

TEST_F(GetCommandTest, WatchReportsLostConnection) {
  int calls = 0;
  server_.on_list = [&](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    if (++calls == 2) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "it stops");
    response->add_jobs()->set_id("tiny");
    response->mutable_jobs(0)->set_revision(calls);
    if (calls == 3) interrupt_.Fire();
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"get", "-w", "-o", "name"}), kExitInterrupted);
  EXPECT_EQ(out_, "tiny\ntiny\n");
  EXPECT_EQ(err_, "connection lost (it stops); reconnecting\nconnected again\n");
}

}  // namespace
}  // namespace fsdpd

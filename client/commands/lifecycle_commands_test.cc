// Tests of the job lifecycle commands with a gRPC server on loopback.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

class LifeCommandsTest : public ServedCommandCase {
 protected:
  // PauseJob returns the job in PAUSING. A watch then returns PAUSING and these states.
  void Becomes(const v1::Job& then) {
    server_.on_pause = [](const v1::PauseJobRequest& request, v1::PauseJobResponse* response) {
      EXPECT_EQ(request.id(), "j");
      response->mutable_job()->set_id("j");
      response->mutable_job()->set_state(v1::JOB_STATE_PAUSING);
      return grpc::Status::OK;
    };
    server_.on_watch = [then](const v1::WatchJobRequest&, grpc::ServerContext* context,
                              grpc::ServerWriter<v1::WatchJobResponse>* writer) {
      v1::WatchJobResponse update;
      update.mutable_job()->set_id("j");
      update.mutable_job()->set_revision(5);
      update.mutable_job()->set_state(v1::JOB_STATE_PAUSING);
      writer->Write(update);
      *update.mutable_job() = then;
      update.mutable_job()->set_id("j");
      update.mutable_job()->set_revision(6);
      writer->Write(update);
      // The stream of a job that has not ended continues until the client cancels it.
      while (then.end_unix_nanos() == 0 && !context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
      return grpc::Status::OK;
    };
  }
  static v1::Job InState(v1::JobState state) {
    v1::Job job;
    job.set_state(state);
    return job;
  }
};

TEST_F(LifeCommandsTest, PausePrintsStateOrWaits) {
  v1::Job paused = InState(v1::JOB_STATE_PAUSED);
  paused.mutable_pause()->set_step(120);
  Becomes(paused);
  EXPECT_EQ(Run({"pause", "j"}), kExitOk);
  EXPECT_EQ(out_, "j pausing\n");
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitOk);
  EXPECT_EQ(out_, "j paused after step 120\n");
  EXPECT_EQ(Run({"pause", "j", "--wait", "-o", "json"}), kExitOk);
  EXPECT_NE(out_.find("\"step\": 120"), std::string::npos) << out_;
}

TEST_F(LifeCommandsTest, PauseThatLosesStepsFails) {
  v1::Job paused = InState(v1::JOB_STATE_PAUSED);
  paused.mutable_pause()->set_step(100);
  paused.mutable_pause()->set_lost_steps(20);
  paused.set_reason("paused after step 100, which is saved; 20 steps after it are lost: the disk is full");
  Becomes(paused);
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitFailed);
  EXPECT_EQ(out_, "j paused after step 100\n");
  EXPECT_EQ(err_,
            "fsdpctl: paused after step 100, which is saved; 20 steps after it are lost: the disk is full "
            "[STATE_NOT_REACHED]\n");
}

TEST_F(LifeCommandsTest, PauseThatHoldsGpuMemoryFails) {
  v1::Job paused = InState(v1::JOB_STATE_PAUSED);
  paused.mutable_pause()->set_step(100);
  paused.mutable_pause()->add_held_memory("node-3 cuda:1 2.1 GiB");
  paused.set_reason(
      "paused after step 100, which is saved; GPU memory is not released: node-3 cuda:1 2.1 GiB");
  Becomes(paused);
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitFailed);
  EXPECT_EQ(out_, "j paused after step 100\n");
  EXPECT_EQ(err_, absl::StrCat("fsdpctl: ", paused.reason(), " [STATE_NOT_REACHED]\n"));
}

TEST_F(LifeCommandsTest, PauseDoesNotWaitForLostNode) {
  v1::Job pausing = InState(v1::JOB_STATE_PAUSING);
  pausing.mutable_pause()->add_unconfirmed("a");
  pausing.set_reason("node a is lost, and what runs there may train on");
  Becomes(pausing);
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitFailed);
  EXPECT_EQ(out_, "j pausing\n");
  EXPECT_EQ(
      err_,
      "fsdpctl: j is not paused yet: node a is lost, and what runs there may train on [STATE_NOT_REACHED]\n");
}

TEST_F(LifeCommandsTest, PauseOfEndingJob) {
  v1::Job ended = InState(v1::JOB_STATE_SUCCEEDED);
  ended.set_end_unix_nanos(1);
  Becomes(ended);
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitOk);
  EXPECT_EQ(out_, "j succeeded\n");
  ended.set_state(v1::JOB_STATE_CANCELLED);
  ended.set_reason("cancelled, all ranks are gone");
  Becomes(ended);
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: j is not paused: cancelled, all ranks are gone [STATE_NOT_REACHED]\n");
}

TEST_F(LifeCommandsTest, PauseWithoutGraceReportsLostSteps) {
  server_.on_pause = [](const v1::PauseJobRequest& request, v1::PauseJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_PAUSING);
    response->mutable_job()->mutable_last_step()->set_step(120);
    response->mutable_job()->add_checkpoints()->set_step(100);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"pause", "j", "--grace", "0"}), kExitOk);
  EXPECT_EQ(err_, "--grace 0 does not save: 20 steps after step 100 are lost\n");
  EXPECT_EQ(Run({"pause", "j", "--grace", "60"}), kExitOk);
  EXPECT_EQ(err_, "");
}

TEST_F(LifeCommandsTest, PauseAndResumeSendFlags) {
  server_.on_pause = [](const v1::PauseJobRequest& request, v1::PauseJobResponse* response) {
    EXPECT_EQ(request.reason(), "a new disk");
    EXPECT_TRUE(request.has_grace_seconds());
    EXPECT_EQ(request.grace_seconds(), 0);
    response->mutable_job()->set_state(v1::JOB_STATE_PAUSED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"pause", "j", "--reason", "a new disk", "--grace", "0"}), kExitOk);
  server_.on_resume = [](const v1::ResumeJobRequest& request, v1::ResumeJobResponse* response) {
    EXPECT_EQ(request.reason(), "it is there");
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"resume", "j", "--reason", "it is there"}), kExitOk);
  EXPECT_EQ(out_, "j queued\n");
}

// A coordinator of a release without labels ignores the selector and lists all jobs.
TEST_F(LifeCommandsTest, AppliesSelectorToListedJobs) {
  server_.on_list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    for (const char* team : {"a", "b", ""}) {
      v1::Job* job = response->add_jobs();
      job->set_id(absl::StrCat("of-", team));
      job->set_state(v1::JOB_STATE_RUNNING);
      v1::Label* label = *team == '\0' ? nullptr : job->add_labels();
      if (label != nullptr) label->set_key("team");
      if (label != nullptr) label->set_value(team);
    }
    return grpc::Status::OK;
  };
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "-l", "team=a"}), kExitOk) << err_;
  EXPECT_EQ(out_, "of-a cancelling\n");
  EXPECT_EQ(Run({"cancel", "-l", "team=c"}), kExitNotFound);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"get", "-l", "!team", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(out_, "of-\n");
}

TEST_F(LifeCommandsTest, PauseBySelectorSkipsCancellingJobs) {
  std::vector<std::pair<std::string, v1::JobState>> listed = {{"leaves", v1::JOB_STATE_CANCELLING},
                                                              {"runs", v1::JOB_STATE_RUNNING},
                                                              {"waits", v1::JOB_STATE_PAUSED},
                                                              {"done", v1::JOB_STATE_SUCCEEDED}};
  const auto list = [](const auto& jobs) {
    return [jobs](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
      for (const auto& [id, state] : jobs) {
        v1::Job* job = response->add_jobs();
        job->set_id(id);
        job->set_state(state);
        job->add_labels()->set_key("team");
      }
      return grpc::Status::OK;
    };
  };
  server_.on_list = list(listed);
  server_.on_pause = [](const v1::PauseJobRequest& request, v1::PauseJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_PAUSED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"pause", "-l", "team"}), kExitOk) << err_;
  EXPECT_EQ(out_, "runs paused\nwaits paused\n");
  listed.resize(1);
  server_.on_list = list(listed);
  EXPECT_EQ(Run({"pause", "-l", "team"}), kExitOk);
  EXPECT_EQ(err_, "every job with team has ended already, or is being cancelled\n");
}

// An etag belongs to one job: with several, the others would be changed after the check of the first failed.
TEST_F(LifeCommandsTest, EtagRequiresOneJob) {
  for (const char* command : {"cancel", "pause", "resume", "retry", "delete"}) {
    EXPECT_EQ(Run({command, "a", "b", "--etag", "X"}), kExitUsage) << command;
    EXPECT_EQ(err_, "fsdpctl: --etag requires exactly one JOB [INVALID_FLAG]\n");
    EXPECT_EQ(Run({command, "-l", "team", "--etag", "X"}), kExitUsage) << command;
  }
}

TEST_F(LifeCommandsTest, DeleteContinuesAfterError) {
  server_.on_delete = [](const v1::DeleteJobRequest& request, v1::DeleteJobResponse* response) {
    if (request.id() == "gone")
      return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'gone'", "JOB_NOT_FOUND");
    if (request.id() == "late") return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no answer");
    response->mutable_job()->set_id(request.id());
    if (request.id() == "saved") {
      response->mutable_job()->mutable_resolved()->mutable_checkpoint()->set_dir("/runs/7");
      response->mutable_job()->add_checkpoints()->set_step(5);
    }
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"delete", "saved", "gone", "plain"}), kExitNotFound);
  EXPECT_EQ(out_, "saved deleted; its checkpoints remain in /runs/7\nplain deleted\n");
  EXPECT_NE(err_.find("no job 'gone'"), std::string::npos) << err_;
  EXPECT_EQ(Run({"delete", "late", "plain"}), kExitTimeout);
  EXPECT_EQ(out_, "plain deleted\n") << "as pause and resume";
  EXPECT_EQ(Run({"delete"}), kExitUsage);
}

// Regression: only "deleted" was printed, although `node delete` rejects the node because of the same ranks.
TEST_F(LifeCommandsTest, DeleteWarnsOfRanksOnLostNode) {
  server_.on_delete = [](const v1::DeleteJobRequest& request, v1::DeleteJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->mutable_resolved()->mutable_checkpoint()->set_dir("/runs/7");
    response->add_unconfirmed_nodes("n1");
    response->add_unconfirmed_nodes("n2");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"delete", "j"}), kExitOk);
  EXPECT_EQ(out_, "j deleted\n");
  EXPECT_EQ(err_,
            "j: warning: its ranks may still run on lost node n1, n2 and hold the lock of /runs/7; make sure "
            "that the "
            "machine is off or runs no fsdpd-rank process\n");
}

// Regression: the wait had no end while the coordinator could not store that the job had ended.
TEST_F(LifeCommandsTest, TimeoutEndsWaitOfCancelAndPause) {
  v1::Job leaving = InState(v1::JOB_STATE_PAUSING);
  leaving.set_reason("waiting only for the store: paused after step 5");
  Becomes(leaving);
  server_.on_get = [&leaving](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    *response->mutable_job() = leaving;
    response->mutable_job()->set_id(request.id());
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"pause", "j", "--wait", "--timeout", "1"}), kExitTimeout);
  EXPECT_EQ(out_, "j pausing\n");
  EXPECT_EQ(
      err_,
      "fsdpctl: j did not pause within --timeout; it is pausing: waiting only for the store: paused after "
      "step 5 [TIMEOUT]\n");
  leaving.set_state(v1::JOB_STATE_CANCELLING);
  leaving.set_reason("waiting only for the store: cancelled, all ranks are gone");
  Becomes(leaving);
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  for (const std::vector<std::string>& jobs : {std::vector<std::string>{"j"}, {"j", "j"}}) {
    std::vector<std::string> arguments = {"cancel", "--wait", "--timeout", "1"};
    arguments.insert(arguments.end(), jobs.begin(), jobs.end());
    EXPECT_EQ(Run(arguments), kExitTimeout);
    EXPECT_NE(
        err_.find("fsdpctl: j did not end within --timeout; it is cancelling: waiting only for the store"),
        std::string::npos)
        << err_;
  }
}

// Regression: the command printed a job without an id and a state, and failed with another code.
TEST_F(LifeCommandsTest, TimeoutEndsPauseWithoutUpdate) {
  Becomes(InState(v1::JOB_STATE_PAUSED));
  server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext* context, auto*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"pause", "j", "--wait", "--timeout", "1"}), kExitTimeout);
  EXPECT_EQ(out_, "j pausing\n");
}

// Regression: the second job was reported in the state in which it was cancelled.
TEST_F(LifeCommandsTest, ReadsJobsAfterTheTimeout) {
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext* context, auto*) {
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  };
  server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(request.id() == "a" ? v1::JOB_STATE_CANCELLING
                                                           : v1::JOB_STATE_CANCELLED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "a", "b", "--wait", "--timeout", "1"}), kExitTimeout);
  EXPECT_EQ(out_, "a cancelling\nb cancelled\n");
  EXPECT_EQ(err_.find("b did not end"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, TimeoutReportsLostConnection) {
  Becomes(InState(v1::JOB_STATE_PAUSED));
  server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext*, auto*) {
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "node unplugged");
  };
  EXPECT_EQ(Run({"pause", "j", "--wait", "--timeout", "1"}), kExitTimeout);
  EXPECT_NE(err_.find("node unplugged"), std::string::npos) << err_;
}

// Regression: "j succeeded" was printed, as if that were the effect of the cancel.
TEST_F(LifeCommandsTest, CancelReportsEndedJob) {
  v1::JobState state = v1::JOB_STATE_SUCCEEDED;
  server_.on_cancel = [&state](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(state);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "j"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j has already succeeded\n");
  EXPECT_EQ(Run({"cancel", "j", "--wait"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j has already succeeded\n");
  state = v1::JOB_STATE_FAILED;
  EXPECT_EQ(Run({"cancel", "j"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j has already failed\n");
  state = v1::JOB_STATE_CANCELLED;  // By this call or an earlier one.
  EXPECT_EQ(Run({"cancel", "j"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j cancelled\n");
}

// Regression: each job was a separate document; later, the document had a page token.
TEST_F(LifeCommandsTest, SeveralJobsAreOneDocument) {
  const auto take = [](const auto& request, auto* response) {
    if (request.id() == "gone")
      return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'gone'", "JOB_NOT_FOUND");
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_PAUSED);
    return grpc::Status::OK;
  };
  server_.on_cancel = take;
  server_.on_pause = take;
  server_.on_resume = take;
  server_.on_retry = take;
  server_.on_delete = take;
  for (const char* command : {"cancel", "pause", "resume", "retry", "delete"}) {
    std::vector<std::string> each;
    for (const char* job : {"a", "b"}) {
      EXPECT_EQ(Run({command, job, "-o", "json"}), kExitOk) << err_;
      EXPECT_EQ(out_.find(std::string("{\n  \"id\": \"") + job), 0U) << out_;
      each.push_back(out_);
    }
    EXPECT_EQ(Run({command, "a", "gone", "b", "-o", "json"}), kExitNotFound) << command;
    EXPECT_EQ(out_, ListOf("jobs", each)) << command;
    EXPECT_EQ(Run({command, "gone", "-o", "json"}), kExitNotFound);
    EXPECT_EQ(out_, "");
  }
}

TEST_F(LifeCommandsTest, RetryPrintsState) {
  server_.on_retry = [](const v1::RetryJobRequest& request, v1::RetryJobResponse* response) {
    EXPECT_EQ(request.reason(), "the disk was full");
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"retry", "j", "--reason", "the disk was full"}), kExitOk);
  EXPECT_EQ(out_, "j queued\n");
}

TEST_F(LifeCommandsTest, RetryRejectsRunningJob) {
  server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"retry", "j"}), kExitFailed);
  EXPECT_EQ(err_,
            "fsdpctl: job j cannot be retried: it is running; `fsdpctl pause j` and `resume` restart its "
            "ranks, `fsdpctl cancel j` ends it [JOB_NOT_ENDED]\n");
}

TEST_F(LifeCommandsTest, SelectorsApplyToMatchingStates) {
  server_.on_list = [](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    for (const auto& [id, state] :
         {std::pair("waits", v1::JOB_STATE_PAUSED), std::pair("failed", v1::JOB_STATE_FAILED),
          std::pair("runs", v1::JOB_STATE_RUNNING)}) {
      v1::Job* job = response->add_jobs();
      job->set_id(id);
      job->set_state(state);
      job->add_labels()->set_key("team");
    }
    return grpc::Status::OK;
  };
  const auto take = [](const auto& request, auto* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    return grpc::Status::OK;
  };
  server_.on_resume = take;
  server_.on_retry = take;
  EXPECT_EQ(Run({"resume", "-l", "team"}), kExitOk) << err_;
  EXPECT_EQ(out_, "waits queued\n");
  EXPECT_EQ(Run({"retry", "-l", "team"}), kExitOk) << err_;
  EXPECT_EQ(out_, "failed queued\n");
  for (const char* command : {"resume", "retry", "delete"}) {
    EXPECT_EQ(Run({command, "-l", "none"}), kExitNotFound) << command;
    EXPECT_EQ(Run({command}), kExitUsage) << command;
    EXPECT_EQ(Run({command, "-l", "team in (a, b)"}), kExitUsage) << command;
    EXPECT_NE(err_.find("sets (in, notin) are not supported"), std::string::npos) << err_;
  }
}

TEST_F(LifeCommandsTest, ReportsErrors) {
  const auto refuses = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::FAILED_PRECONDITION,
                              "job j cannot be paused: it is being cancelled", "JOB_NOT_PAUSABLE");
  };
  server_.on_pause = refuses;
  EXPECT_EQ(Run({"pause", "j", "--wait"}), kExitFailed);
  EXPECT_NE(err_.find("it is being cancelled"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, TimeoutOfAChangeMayHaveTakenEffect) {
  const auto is_late = [](const auto&, auto*) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no answer");
  };
  server_.on_cancel = is_late;
  EXPECT_EQ(Run({"cancel", "j"}), kExitTimeout);
  EXPECT_NE(err_.find("may have taken effect"), std::string::npos) << err_;
  EXPECT_NE(err_.find(" [DEADLINE_EXCEEDED]\n"), std::string::npos) << err_;
  EXPECT_EQ(err_.find("fsdpctl: the coordinator at "), 0u) << err_;
  EXPECT_EQ(Run({"cancel", "job-1", "job-2"}), kExitTimeout);
  EXPECT_EQ(err_.find("fsdpctl: job-1: the coordinator at "), 0u) << err_;
  EXPECT_NE(err_.find("\nfsdpctl: job-2: the coordinator at "), std::string::npos) << err_;
  server_.on_list = is_late;
  EXPECT_EQ(Run({"get"}), kExitTimeout);
  EXPECT_EQ(err_.find("may have taken effect"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, RejectsGraceOutOfRange) {
  for (const char* command : {"pause", "cancel"}) {
    EXPECT_EQ(Run({command, "j", "--grace", "3601"}), kExitUsage);
    EXPECT_NE(err_.find("--grace: '3601' is not an integer from 0 to 3600"), std::string::npos) << err_;
  }
}

TEST_F(LifeCommandsTest, RejectsEmptyRequestId) {
  EXPECT_EQ(Run({"submit", "-f", "-", "--request-id", ""}), kExitUsage);
  EXPECT_NE(err_.find("--request-id"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, VersionIsPrintedDespiteRejectedCall) {
  server_.on_version = [](const v1::GetVersionRequest&, v1::GetVersionResponse*) {
    return RefusalWithDetails(grpc::StatusCode::UNAUTHENTICATED, "the call has no token", "MISSING_TOKEN");
  };
  EXPECT_EQ(Run({"version"}), kExitFailed);
  EXPECT_EQ(out_.find("client  "), 0U) << out_;
  EXPECT_NE(err_.find("[MISSING_TOKEN]"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, TokenNewErrorNamesItsHelp) {
  EXPECT_EQ(Run({"token", "new", "alice", "--role", "admin"}), kExitUsage);
  EXPECT_NE(err_.find("run `fsdpctl token new --help` for usage"), std::string::npos) << err_;
}

TEST_F(LifeCommandsTest, AllHaveExamples) {
  for (const char* command : {"cancel", "pause", "resume", "retry", "delete"}) {
    EXPECT_EQ(Run({command, "--help"}), 0);
    EXPECT_NE(out_.find(std::string("Examples:\n  fsdpctl ") + command), std::string::npos) << out_;
  }
}

TEST_F(LifeCommandsTest, CancelSendsReasonAndGrace) {
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    EXPECT_EQ(request.reason(), "wrong data");
    EXPECT_EQ(request.grace_seconds(), 60);
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  server_.on_watch = [](const v1::WatchJobRequest& request, grpc::ServerContext*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_revision(9);
    update.mutable_job()->set_state(v1::JOB_STATE_CANCELLED);
    writer->Write(update);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "j", "--reason", "wrong data", "--grace", "60"}), 0);
  EXPECT_EQ(out_, "j cancelling\n");
  EXPECT_EQ(Run({"cancel", "j", "--reason", "wrong data", "--grace", "60", "--wait"}), 0);
  EXPECT_EQ(out_, "j cancelled\n");
}

}  // namespace
}  // namespace fsdpd

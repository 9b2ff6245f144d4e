// Tests of `submit --from`, `--array` and `--after` with a gRPC server on loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/mutex.h"
#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

class SubmitFromTest : public ServedCommandCase {
 protected:
  void SetUp() override {
    server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
      if (request.id() == "gone-1")
        return grpc::Status(grpc::StatusCode::NOT_FOUND, "there is no job gone-1");
      v1::Job* job = response->mutable_job();
      job->set_id(request.id());
      if (request.id() == "bare-1") return grpc::Status::OK;
      for (const int step : {100, 200}) {
        job->add_checkpoints()->set_step(step);
        job->mutable_checkpoints(job->checkpoints_size() - 1)
            ->set_path("/runs/7/iter_" + std::to_string(step));
      }
      return grpc::Status::OK;
    };
    server_.on_submit = [this](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
      MutexLock lock(&mutex_);
      after_.assign(request.after().begin(), request.after().end());
      submitted_.push_back(request.spec().checkpoint().load());
      response->mutable_job()->set_id("b-1");
      return grpc::Status::OK;
    };
    ServedCommandCase::SetUp();
    std::ofstream(dir_.File("job.yaml"))
        << "name: b\nmodel: {preset: tiny}\ndata: {synthetic: {}, sequence_length: 8}\ntrain: {steps: 3}\n";
  }

  int Submit(const std::string& from, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"submit", "-f", dir_.File("job.yaml"), "--from", from};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }
  std::vector<std::string> Submitted() {
    MutexLock lock(&mutex_);
    return submitted_;
  }

  using Loads = std::vector<std::string>;
  TempDir dir_;
  Mutex mutex_;
  Loads submitted_ ABSL_GUARDED_BY(mutex_);                 // checkpoint.load of each job.
  std::vector<std::string> after_ ABSL_GUARDED_BY(mutex_);  // `after` of the newest job.
};

TEST_F(SubmitFromTest, ArraySubmitsNumberedJobs) {
  std::vector<v1::SubmitJobRequest> made;
  Mutex mutex;
  server_.on_submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    MutexLock lock(&mutex);
    made.push_back(request);
    response->mutable_job()->set_id(request.spec().name() + "-x");
    return grpc::Status::OK;
  };
  const auto submit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"submit", "-f", dir_.File("job.yaml"), "--set",
                                          "checkpoint.dir=/runs"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  };
  EXPECT_EQ(submit({"--array", "train.seed=1,2", "--request-id", "sweep"}), kExitOk) << err_;
  EXPECT_EQ(out_, "b-0-x\nb-1-x\n");
  EXPECT_EQ(err_,
            "submitting 2 jobs as array sweep\n2 of 2 jobs submitted; `fsdpctl get --array sweep` shows "
            "them, `fsdpctl cancel --array sweep` ends "
            "them\n");
  {
    MutexLock lock(&mutex);
    ASSERT_EQ(made.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(made[i].request_id(), "sweep/" + std::to_string(i));
      EXPECT_EQ(made[i].spec().train().seed(), i + 1);
      EXPECT_EQ(made[i].spec().checkpoint().dir(), "/runs/" + std::to_string(i));
    }
  }
  EXPECT_EQ(submit({"--array", "train.seed=1,x"}), kExitSpecRefused);
  EXPECT_EQ(submit({"--array", "train.micro_batch=1,-4"}), kExitSpecRefused);
  EXPECT_EQ(submit({"--array", "train.seed"}), kExitUsage);
  EXPECT_EQ(Run({"cancel"}), kExitUsage);
  MutexLock lock(&mutex);
  EXPECT_EQ(made.size(), 2u) << "an array with an invalid spec submits nothing";
}

TEST_F(SubmitFromTest, PartiallyRejectedArrayIsOneDocument) {
  server_.on_submit = [](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    if (request.spec().train().seed() == 2)
      return RefusalWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "1 fault", "INVALID_SPEC",
                                {{"train.seed", "is not wanted"}});
    response->mutable_job()->set_id("made");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-f", dir_.File("job.yaml"), "--array", "train.seed=1,2,3", "-o", "json"}),
            kExitSpecRefused);
  EXPECT_EQ(out_.find("{\n  \"jobs\": [{"), 0u) << out_;
  EXPECT_EQ(out_.find("\n}\n"), out_.size() - 3) << "there is one document: " << out_;
  EXPECT_NE(out_.find("\"id\": \"made\""), std::string::npos) << out_;
  EXPECT_NE(err_.find("train.seed: is not wanted"), std::string::npos) << err_;
}

// Regression: after Ctrl-C, 88 running jobs were not mentioned.
TEST_F(SubmitFromTest, InterruptedArrayReportsSubmittedJobs) {
  server_.on_submit = [this](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    response->mutable_job()->set_id(request.spec().name() + "-x");
    if (request.spec().train().seed() == 2) interrupt_.Fire();
    return grpc::Status::OK;
  };
  EXPECT_EQ(
      Run({"submit", "-f", dir_.File("job.yaml"), "--array", "train.seed=1,2,3", "--request-id", "sweep"}),
      kExitInterrupted);
  EXPECT_EQ(out_, "b-0-x\nb-1-x\n");
  EXPECT_EQ(
      err_,
      "submitting 3 jobs as array sweep\n"
      "2 of 3 jobs submitted; `fsdpctl get --array sweep` shows them, `fsdpctl cancel --array sweep` ends "
      "them, and the same command with --request-id sweep submits the rest\n");
}

TEST_F(SubmitFromTest, RejectedArrayHasNoHints) {
  server_.on_submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    return RefusalWithDetails(grpc::StatusCode::FAILED_PRECONDITION, "not now", "QUEUE_FULL");
  };
  EXPECT_EQ(
      Run({"submit", "-f", dir_.File("job.yaml"), "--array", "train.seed=1,2", "--request-id", "sweep"}),
      kExitFailed);
  EXPECT_EQ(err_, "submitting 2 jobs as array sweep\nfsdpctl: not now [QUEUE_FULL]\n0 of 2 jobs submitted\n");
}

TEST_F(SubmitFromTest, ArrayErrorsNameTheirValues) {
  const auto violations = [this](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"submit", "-f", dir_.File("job.yaml"), "--array",
                                          "train.micro_batch=1,3,5"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(Run(arguments), kExitSpecRefused);
    return err_;
  };
  const std::string batch = violations({"--set", "train.global_batch=8"});
  EXPECT_EQ(batch.find("with train.micro_batch=1"), std::string::npos) << batch;
  EXPECT_NE(batch.find("train.global_batch: with train.micro_batch=3: "), std::string::npos) << batch;
  EXPECT_NE(batch.find("train.global_batch: with train.micro_batch=5: "), std::string::npos) << batch;
  const std::string name = violations({"--set", "name=B"});
  EXPECT_EQ(name.find("error: name: "), name.rfind("error: name: ")) << name;
  EXPECT_EQ(name.find("with train"), std::string::npos) << name;
  EXPECT_EQ(Run({"submit", "-f", dir_.File("job.yaml"), "--array", "train.seed=1,x", "--array",
                 "train.micro_batch=1,2"}),
            kExitSpecRefused);
  EXPECT_EQ(err_.find("--array train.seed=x:1:1: error: train.seed: 'x' is not an integer"), 0u) << err_;
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
}

TEST_F(SubmitFromTest, CancelsArray) {
  std::vector<std::string> cancelled;
  Mutex mutex;
  server_.on_list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    EXPECT_TRUE(request.all_projects());
    for (const char* of : {"sweep/0", "sweep/1", "sweep", "other/0"}) {
      v1::Job* job = response->add_jobs();
      job->set_request_id(of);
      job->set_id(std::string("j-") + of);
      job->set_state(std::string(of) == "sweep/1" ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_RUNNING);
    }
    return grpc::Status::OK;
  };
  server_.on_cancel = [&](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    MutexLock lock(&mutex);
    cancelled.push_back(request.id());
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLED);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "--array", "sweep"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j-sweep/0 cancelled\n");
  EXPECT_EQ(Run({"cancel", "--array", "none"}), kExitNotFound);
  EXPECT_EQ(Run({"get", "--array", "none"}), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: no jobs in array 'none' [JOB_NOT_FOUND]\n");
  MutexLock lock(&mutex);
  EXPECT_EQ(cancelled, std::vector<std::string>{"j-sweep/0"});
}

TEST_F(SubmitFromTest, CancelWaitsForAllJobsOfArray) {
  v1::JobState now = v1::JOB_STATE_RUNNING;
  server_.on_list = [&](const v1::ListJobsRequest&, v1::ListJobsResponse* response) {
    for (const char* of : {"sweep/0", "sweep/1"}) {
      v1::Job* job = response->add_jobs();
      job->set_request_id(of);
      job->set_id(std::string("j-") + of);
      job->set_state(now);
    }
    return grpc::Status::OK;
  };
  server_.on_cancel = [](const v1::CancelJobRequest& request, v1::CancelJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    response->mutable_job()->set_state(v1::JOB_STATE_CANCELLING);
    return grpc::Status::OK;
  };
  server_.on_watch = [](const v1::WatchJobRequest& request, auto, auto* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_revision(2);
    update.mutable_job()->set_state(v1::JOB_STATE_CANCELLED);
    writer->Write(update);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"cancel", "--array", "sweep", "--wait"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j-sweep/0 cancelled\nj-sweep/1 cancelled\n");
  now = v1::JOB_STATE_SUCCEEDED;
  EXPECT_EQ(Run({"cancel", "--array", "sweep"}), kExitOk);
  EXPECT_EQ(out_ + err_, "every job of array sweep has ended already\n");
}

TEST_F(SubmitFromTest, AfterAcceptsListOrRepeatedFlag) {
  const auto after = [this](const std::vector<std::string>& flags) {
    EXPECT_EQ(Submit("a-1", flags), kExitOk) << err_;
    MutexLock lock(&mutex_);
    return after_;
  };
  EXPECT_EQ(after({}), std::vector<std::string>{});
  EXPECT_EQ(after({"--after", "x-1,y-2"}), (std::vector<std::string>{"x-1", "y-2"}));
  EXPECT_EQ(after({"--after", "x-1", "--after", "y-2"}), (std::vector<std::string>{"x-1", "y-2"}));
  EXPECT_EQ(Submit("a-1", {"--after", ""}), kExitUsage);
}

TEST_F(SubmitFromTest, AfterArrayHasHint) {
  server_.on_submit = [](const v1::SubmitJobRequest&, v1::SubmitJobResponse*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'sweep-1'", "JOB_NOT_FOUND");
  };
  EXPECT_EQ(Submit("a-1", {"--after", "sweep-1"}), kExitNotFound);
  EXPECT_EQ(err_,
            "fsdpctl: no job 'sweep-1'; `fsdpctl get` lists the jobs [JOB_NOT_FOUND]\n"
            "fsdpctl: --after requires ids of jobs; `fsdpctl get --array ARRAY` lists those of an array\n");
}

TEST_F(SubmitFromTest, FromSetsCheckpointLoad) {
  EXPECT_EQ(Submit("a-1"), kExitOk) << err_;
  EXPECT_EQ(Submit("a-1@100"), kExitOk) << err_;
  EXPECT_EQ(Submitted(), (Loads{"/runs/7/iter_200", "/runs/7/iter_100"}));
}

TEST_F(SubmitFromTest, MissingCheckpointSubmitsNothing) {
  EXPECT_EQ(Submit("a-1@150"), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: --from: a-1 has no checkpoint of step 150; available: 100, 200 [NOT_FOUND]\n");
  EXPECT_EQ(Submit("bare-1"), kExitNotFound);
  EXPECT_EQ(
      err_,
      "fsdpctl: --from: bare-1 does not write checkpoints: its spec has no checkpoint.dir [NOT_FOUND]\n");
  EXPECT_EQ(Submit("gone-1"), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: there is no job gone-1; `fsdpctl get` lists the jobs [NOT_FOUND]\n");
  EXPECT_EQ(Submitted(), Loads{});
}

TEST_F(SubmitFromTest, RejectsContradictingLoad) {
  EXPECT_EQ(Submit("a-1", {"--set", "checkpoint.load=/runs/6"}), kExitSpecRefused);
  EXPECT_NE(err_.find("error: checkpoint.load: is /runs/6, but --from a-1 is /runs/7/iter_200; remove one "
                      "of them [from_and_load]\n"),
            std::string::npos)
      << err_;
  EXPECT_EQ(Submitted(), Loads{});
  EXPECT_EQ(Submit("a-1", {"--set", "checkpoint.load=/runs/7/iter_200/"}), kExitOk) << err_;
  EXPECT_EQ(Submitted(), Loads{"/runs/7/iter_200"});
}

}  // namespace
}  // namespace fsdpd

// Tests of submit, validate and plan: exit code, stdout and stderr.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "base/mutex.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using SpecCommandsTest = SpecCommandCase;

TEST_F(SpecCommandsTest, SubmitSendsSpecAndPrintsId) {
  Mutex mutex;
  std::set<std::string> request_ids;
  server_.on_submit = [&](const v1::SubmitJobRequest& request, v1::SubmitJobResponse* response) {
    EXPECT_EQ(request.spec().train().steps(), 7);
    MutexLock lock(&mutex);
    request_ids.insert(request.request_id());
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-f", file_, "--set", "train.steps=7"}), 0);
  EXPECT_EQ(out_, "a-1\n");
  EXPECT_EQ(Run({"submit", "-f", "-", "--set", "train.steps=7", "--request-id", "mine"}, kTinySpec), 0);
  MutexLock lock(&mutex);
  EXPECT_EQ(request_ids.size(), 2u);
  EXPECT_EQ(request_ids.count("mine"), 1u);
}

TEST_F(SpecCommandsTest, LocatesRejectedField) {
  server_.on_submit = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "1 fault", "INVALID_SPEC",
                              {{"train.steps", "is 3"}});
  };
  EXPECT_EQ(Run({"submit", "-f", file_}), kExitSpecRefused);
  EXPECT_EQ(err_, file_ + ":5:3: error: train.steps: is 3\n")
      << "from the error details, because ValidateJob fails";
  server_.on_validate = [](const auto&, v1::ValidateJobResponse* response) {
    v1::Violation* fault = response->add_violations();
    fault->set_rule("steps_even");
    fault->set_severity(v1::SEVERITY_ERROR);
    fault->set_field("train.steps");
    fault->set_reason("is 3");
    fault->set_fix("write 4");
    return grpc::Status::OK;
  };
  for (const char* command : {"submit", "validate"}) {
    EXPECT_EQ(Run({command, "-f", file_}), kExitSpecRefused);
    EXPECT_EQ(err_, file_ + ":5:3: error: train.steps: is 3; write 4 [steps_even]\n");
    EXPECT_EQ(out_, "");
  }
}

TEST_F(SpecCommandsTest, RejectsParseErrorsWithoutCoordinator) {
  server_.Stop();
  EXPECT_EQ(Run({"submit", "-f", "-"}, "nmae: a\n"), kExitSpecRefused);
  EXPECT_EQ(err_.find("<stdin>:1:1: error: unknown field nmae; did you mean name? [unknown_field]\n"), 0u)
      << err_;
  EXPECT_EQ(err_.find("[name_is_label]"), std::string::npos)
      << "a misspelled field is not reported as missing too";
  EXPECT_NE(err_.find("[model_required]"), std::string::npos) << err_;
  EXPECT_EQ(Run({"submit", "-f", dir_.File("no.yaml")}), kExitUsage);
  EXPECT_EQ(err_, "fsdpctl: " + dir_.File("no.yaml") + ": No such file or directory [FILE_ERROR]\n");
}

constexpr char kEightFaults[] = R"(name: Llama
model: {preset: llama3-8b}
data: {synthetic: {}, sequence_length: 8192}
train: {steps: many}
optimizer: {adamw: {lr: -1, epz: 1e-8}}
schedule: {cosine: {min_lr_ratio: 2}}
restart: {max_attempts: 0}
telemetry: {memory_snapshot: maybe}
resources: {memory_budget_bytes: 1GiB}
)";

// Regression: parse errors hid rule violations, and these hid memory errors, so a spec had to be fixed three
// times.
TEST_F(SpecCommandsTest, ReportsParseRuleAndMemoryErrorsInFileOrder) {
  server_.Stop();
  const std::string said[] = {"<stdin>:1:1: error: name: 'Llama' ",
                              "<stdin>:4:16: error: train.steps: 'many' ",
                              "<stdin>:5:21: error: optimizer.adamw.lr: lr is -1 ",
                              "<stdin>:5:29: error: unknown field optimizer.adamw.epz; ",
                              "<stdin>:6:21: error: schedule.cosine.min_lr_ratio: ",
                              "<stdin>:7:11: error: restart.max_attempts: ",
                              "<stdin>:8:30: error: telemetry.memory_snapshot: 'maybe' ",
                              "<stdin>:9:13: error: resources.memory_budget_bytes: "};
  for (const char* command : {"submit", "validate", "plan"}) {
    EXPECT_EQ(Run({command, "-f", "-"}, kEightFaults), kExitSpecRefused);
    std::istringstream lines(err_);
    std::string line;
    for (const std::string& each : said) {
      std::getline(lines, line);
      EXPECT_EQ(line.substr(0, each.size()), each);
    }
    EXPECT_FALSE(std::getline(lines, line)) << line;
    EXPECT_EQ(out_, "");
    EXPECT_EQ(Run({command, "-f", "-", "-o", "json"}, kEightFaults), kExitSpecRefused);
    EXPECT_NE(out_.find("\"rule\": \"min_lr_ratio_range\""), std::string::npos) << out_;
    EXPECT_NE(out_.find("\"file\": \"<stdin>\",\n    \"line\": 6,\n    \"column\": 21"), std::string::npos)
        << out_;
  }
}

// Regression: 100 warnings that precede an error hid it, and the exit code was 0.
TEST_F(SpecCommandsTest, KeepsErrorAmongManyWarnings) {
  server_.on_validate = [](const auto&, v1::ValidateJobResponse* response) {
    for (int i = 0; i < 150; ++i) {
      v1::Violation* warning = response->add_violations();
      warning->set_rule("token_file_here");
      warning->set_severity(v1::SEVERITY_WARN);
      warning->set_field("name");
    }
    v1::Violation* error = response->add_violations();
    error->set_rule("steps_even");
    error->set_severity(v1::SEVERITY_ERROR);
    error->set_field("train.steps");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"validate", "-f", file_}), kExitSpecRefused);
  EXPECT_NE(err_.find("the first 100 of 151:\n"), std::string::npos) << err_;
  EXPECT_NE(err_.find("[steps_even]"), std::string::npos) << err_;
}

TEST_F(SpecCommandsTest, RejectedSubmitPrintsJson) {
  server_.on_submit = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::INVALID_ARGUMENT, "1 fault", "INVALID_SPEC",
                              {{"train.steps", "is 3"}});
  };
  EXPECT_EQ(Run({"submit", "-f", file_, "-o", "yaml"}), kExitSpecRefused);
  EXPECT_NE(out_.find("field: train.steps\n"), std::string::npos) << out_;
  EXPECT_NE(out_.find("severity: error\n"), std::string::npos) << out_;
  EXPECT_NE(out_.find("line: 5\n"), std::string::npos) << out_;
}

// Regression: validate ignored memory and accepted a spec that plan rejected.
TEST_F(SpecCommandsTest, OfflineValidateAndPlanAgree) {
  server_.Stop();
  for (const char* command : {"validate", "plan"}) {
    EXPECT_EQ(Run({command, "-f", file_, "--offline", "--set", "resources.memory_budget_bytes=1000"}),
              kExitSpecRefused);
    EXPECT_NE(err_.find("[memory_over_budget]"), std::string::npos) << err_;
  }
}

// Regression: validate accepted a missing checkpoint without a note, and the job failed at launch.
TEST_F(SpecCommandsTest, ValidateListsUncheckedNodePaths) {
  server_.on_validate = [](const auto&, v1::ValidateJobResponse*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"validate", "-f", file_}), 0) << err_;
  EXPECT_EQ(err_.find("not checked"), std::string::npos) << err_;
  for (const bool offline : {false, true}) {
    std::vector<std::string> command = {"validate", "-f", file_};
    for (const char* set : {"checkpoint.load=/nowhere", "checkpoint.dir=/runs/7", "checkpoint.every_steps=1"})
      command.insert(command.end(), {"--set", set});
    if (offline) command.push_back("--offline");
    EXPECT_EQ(Run(command), 0) << err_;
    EXPECT_NE(err_.find(": valid\n"), std::string::npos) << err_;
    EXPECT_NE(err_.find(": not checked on the nodes: checkpoint.dir, checkpoint.load\n"), std::string::npos)
        << err_;
  }
}

// Applying the suggested fix gives the peak memory that the fix states.
TEST_F(SpecCommandsTest, AppliedFixHasPredictedPeak) {
  server_.Stop();
  const std::string spec =
      "name: a\nmodel: {preset: llama3-8b}\ndata: {synthetic: {}, sequence_length: 8192}\n"
      "train: {steps: 3, micro_batch: 4}\nresources: {ranks_per_node: 8}\n";
  int advised = 0;
  for (const int gib : {50, 40, 34, 30, 26}) {
    std::vector<std::string> command = {
        "plan", "-f", "-", "--offline", "--set", absl::StrCat("resources.memory_budget_bytes=", gib, "GiB")};
    if (Run(command, spec) == 0) continue;
    const std::string advice = err_.substr(err_.find("; use ") + 6);
    const std::string changes = advice.substr(0, advice.find(": the peak becomes "));
    const std::regex change("([a-z_.]+): ([a-z0-9_]+)");
    for (std::sregex_iterator it(changes.begin(), changes.end(), change), end; it != end; ++it) {
      command.insert(command.end(), {"--set", absl::StrCat((*it)[1].str(), "=", (*it)[2].str())});
    }
    EXPECT_EQ(Run(command, spec), 0) << advice << err_;
    const size_t told = advice.find(": the peak becomes ") + 19;
    const std::string peak = advice.substr(told, advice.find(" per rank") - told);
    EXPECT_NE(out_.find("  peak            " + peak), std::string::npos) << advice << out_.substr(0, 1500);
    ++advised;
  }
  EXPECT_GE(advised, 1);
}

TEST_F(SpecCommandsTest, ValidatesAndPlansOffline) {
  server_.Stop();
  EXPECT_EQ(Run({"validate", "-f", file_, "--offline", "--set", "resources.device=cpu"}), 0) << err_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--set", "resources.device=cpu"}), 0) << err_;
  for (const char* word : {"main_params", "optimizer", "gradients", "program "}) {
    EXPECT_NE(out_.find(word), std::string::npos) << out_;
  }
  EXPECT_EQ(Run({"validate", "-f", file_, "--offline", "--set", "train.steps=-1"}), kExitSpecRefused);
  EXPECT_NE(err_.find("--set train.steps=-1:1:1: error: "), std::string::npos) << err_;
}

TEST_F(SpecCommandsTest, PlanWritesPredictionAndPicture) {
  server_.Stop();
  const std::string trace = dir_.File("step.json"), picture = dir_.File("step.svg");
  EXPECT_EQ(
      Run({"plan", "-f", file_, "--offline", "--profile", "h100", "--trace", trace, "--picture", picture}), 0)
      << err_;
  for (const char* word : {"prediction for h100", "tokens/s", "exposed", "resources.memory_budget_bytes"}) {
    EXPECT_NE(out_.find(word), std::string::npos) << out_;
  }
  std::stringstream written;
  written << std::ifstream(trace).rdbuf() << std::ifstream(picture).rdbuf();
  EXPECT_EQ(written.str().find("{\"traceEvents\":["), 0u);
  EXPECT_NE(written.str().find("<svg "), std::string::npos);
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "-o", "json"}), 0) << err_;
  EXPECT_NE(out_.find("\"step_seconds\""), std::string::npos);
  EXPECT_EQ(out_.find("start_seconds"), std::string::npos) << "the timeline is only for files";
}

TEST_F(SpecCommandsTest, PlanShowsSnapshotCost) {
  server_.Stop();
  std::vector<std::string> command = {"plan", "-f", file_, "--offline", "--profile", "h100"};
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_EQ(out_.find("snapshot"), std::string::npos) << out_;
  command.insert(command.end(), {"--set", "checkpoint.dir=runs"});
  EXPECT_EQ(Run(command), 0) << err_;
  for (const char* text : {"  host  ", "pinned host memory: checkpoint snapshots", "  snapshot  ",
                           " during the next step", "checkpoint.on_end", " Snapshot"}) {
    EXPECT_NE(out_.find(text), std::string::npos) << text << " in " << out_;
  }
  command.insert(command.end(), {"-o", "json"});
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_NE(out_.find("\"host_bytes\": "), std::string::npos);
  EXPECT_NE(out_.find("\"snapshot_stall_seconds\": "), std::string::npos);
}

TEST_F(SpecCommandsTest, PlanReportsInvalidProfile) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", "h2O0"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean h200? the built-in profiles are cpu, h100, h200"), std::string::npos)
      << err_;
  const std::string profile = dir_.File("profile.json");
  std::ofstream(profile) << "{\"base\": \"cpu\", \"memory_bytes\": -1}";
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", profile}), kExitUsage);
  EXPECT_EQ(err_.find(profile + ":1:33: error: memory_bytes: is -1"), 0u) << err_;
  for (const char* flag : {"--trace", "--picture"}) {
    EXPECT_EQ(Run({"plan", "-f", file_, "--offline", flag, dir_.File("no/such/directory")}), kExitUsage);
    EXPECT_EQ(err_, absl::StrCat("fsdpctl: ", flag, " ", dir_.File("no/such/directory"),
                                 ": No such file or directory [FILE_ERROR]\n"));
    EXPECT_EQ(out_, "");
  }
}

TEST_F(SpecCommandsTest, PlanSendsProfile) {
  server_.on_plan = [](const v1::PlanJobRequest& request, v1::PlanJobResponse* response) {
    EXPECT_EQ(request.profile().name(), "h100");
    EXPECT_TRUE(request.timeline());
    response->mutable_plan()->set_world_size(2);
    response->mutable_plan()->mutable_prediction()->set_step_seconds(1.25);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--profile", "h100", "--trace", dir_.File("t")}), kExitUsage);
  EXPECT_NE(err_.find("did not send a timeline"), std::string::npos) << err_;
  server_.on_plan = [](const v1::PlanJobRequest& request, v1::PlanJobResponse* response) {
    EXPECT_FALSE(request.has_profile());
    EXPECT_FALSE(request.timeline());
    response->mutable_plan()->mutable_prediction()->set_step_seconds(1.25);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_}), 0) << err_;
  EXPECT_NE(out_.find("1250 ms"), std::string::npos) << out_;
}

// Regression: the record was opened for a check, closed, and opened again, which the reader of a pipe took
// for the end.
TEST_F(SpecCommandsTest, OpensRecordOnce) {
  const std::string record = dir_.File("steps.jsonl");
  std::ofstream(record).close();
  server_.on_submit = [](const auto&, v1::SubmitJobResponse* response) {
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  server_.on_watch = [](const v1::WatchJobRequest& request, grpc::ServerContext*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_revision(1);
    update.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
    writer->Write(update);
    return grpc::Status::OK;
  };
  const int watch = inotify_init1(IN_NONBLOCK);
  ASSERT_GE(inotify_add_watch(watch, record.c_str(), IN_OPEN | IN_CLOSE_WRITE), 0);
  EXPECT_EQ(Run({"submit", "-f", file_, "--follow", "--record", record}), 0) << err_;
  inotify_event events[8];  // Events of a file have no names.
  EXPECT_EQ(read(watch, events, sizeof(events)), static_cast<ssize_t>(2 * sizeof(inotify_event)))
      << "one open, one close";
  close(watch);
}

TEST_F(SpecCommandsTest, FailedRecordFailsCommand) {
  server_.on_submit = [](const auto&, v1::SubmitJobResponse* response) {
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  server_.on_watch = [](const v1::WatchJobRequest& request, grpc::ServerContext*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_step()->set_step(1);
    writer->Write(update);
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_revision(1);
    update.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
    writer->Write(update);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-f", file_, "--follow", "--record", "/dev/full"}), kExitUsage);
  EXPECT_NE(err_.find("--record /dev/full: No space left on device; the record ends before step 1\n"),
            std::string::npos)
      << err_;
  EXPECT_NE(out_.find("a-1 succeeded"), std::string::npos) << out_;
  EXPECT_EQ(Run({"watch", "a-1", "--record", "/dev/full"}), kExitUsage);
}

TEST_F(SpecCommandsTest, InterruptedFollowPrintsCommands) {
  server_.on_submit = [](const auto&, v1::SubmitJobResponse* response) {
    response->mutable_job()->set_id("a-1");
    return grpc::Status::OK;
  };
  server_.on_watch = [&](const auto&, grpc::ServerContext*, grpc::ServerWriter<v1::WatchJobResponse>*) {
    interrupt_.Fire();
    release_.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"submit", "-f", file_, "--follow"}), kExitInterrupted);
  EXPECT_EQ(err_, "a-1 continues; `fsdpctl watch a-1` shows it again, `fsdpctl cancel a-1` ends it\n");
  release_.Fire();
}

}  // namespace
}  // namespace fsdpd

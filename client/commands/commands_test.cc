// Tests of fsdpctl commands with a gRPC server on loopback: exit code, stdout and stderr.

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <set>
#include <sstream>

#include "base/mutex.h"
#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/plan/predict/device_profile.h"

namespace fsdpd {
namespace {

constexpr char kSpec[] =
    "name: a\nmodel: {preset: tiny}\ndata: {synthetic: {}, sequence_length: 8}\ntrain:\n  steps: 3\n";

class CommandsTest : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    file_ = dir_.File("job.yaml");
    std::ofstream(file_) << kSpec;
  }

  TempDir dir_;
  std::string file_;
  Interrupt release_;  // Hooks wait for it.
};

TEST_F(CommandsTest, HelpListsAllCommands) {
  EXPECT_EQ(Run({"--help"}), 0);
  for (const char* command : {"submit", "validate", "plan", "migrate", "profile-device", "ckpt", "get",
                              "describe", "watch", "logs", "trace", "cancel", "nodes", "version"}) {
    EXPECT_NE(out_.find(absl::StrCat("\n  ", command, " ")), std::string::npos) << command;
  }
}

TEST_F(CommandsTest, AllCommandsHaveExamples) {
  for (const char* command : {"submit", "validate", "plan", "migrate", "profile-device", "ckpt", "get",
                              "describe", "watch", "logs", "cancel", "nodes", "version"}) {
    EXPECT_EQ(Run({command, "--help"}), 0);
    EXPECT_NE(out_.find(absl::StrCat("Examples:\n  fsdpctl ", command)), std::string::npos) << out_;
  }
}

TEST_F(CommandsTest, UsageErrorSuggestsSimilarWord) {
  const std::pair<std::vector<std::string>, std::string> cases[] = {
      {{"sumbit"}, "fsdpctl: unknown command 'sumbit'; did you mean submit? [INVALID_FLAG]\n"},
      {{"events", "--filter=kind = SUCCEEDED"},
       "fsdpctl: unknown flag '--filter=kind = SUCCEEDED'; it was removed after release 0.1: use --state, "
       "--selector or --project, or a condition in -o jsonpath [INVALID_FLAG]\n"},
      {{"jobs"}, "fsdpctl: unknown command 'jobs'; did you mean get? [INVALID_FLAG]\n"},
      {{"get", "--ouput", "json"},
       "fsdpctl: unknown flag '--ouput'; did you mean --output? [INVALID_FLAG]\n"},
      {{"logs", "j", "--rank", "many"},
       "fsdpctl: --rank: 'many' is not an integer from 0 to 2147483647 [INVALID_FLAG]\n"},
      {{"profile-device", "--ranks", "1025"},
       "fsdpctl: --ranks: '1025' is not an integer from 1 to 1024 [INVALID_FLAG]\n"},
      {{"describe"}, "fsdpctl: JOB is required [INVALID_FLAG]\n"},
      {{"nodes", "--server", "here"}, "fsdpctl: --server: 'here' is not HOST:PORT [INVALID_FLAG]\n"},
      {{"nodes", "--server", "a:77777,b:1"},
       "fsdpctl: --server: 'a:77777' is not HOST:PORT, in 'a:77777,b:1' [INVALID_FLAG]\n"},
      {{"nodes", "--server", ",b:1"}, "fsdpctl: --server: '' is not HOST:PORT, in ',b:1' [INVALID_FLAG]\n"},
      {{"nodes", "--server", "a;b:1"}, "fsdpctl: --server: 'a;b:1' is not HOST:PORT [INVALID_FLAG]\n"},
      {{"submit", "-f", ""}, "fsdpctl: --file: is empty; add a value [INVALID_FLAG]\n"},
      {{"submit", "-f", "x", "--from", "a@b"},
       "fsdpctl: --from: 'b' is not a step number from 1; write JOB or JOB@STEP [INVALID_FLAG]\n"},
      {{"plan", "-f", "x", "--trace", ""}, "fsdpctl: --trace: is empty; add a value [INVALID_FLAG]\n"},
      {{"describe", ""}, "fsdpctl: JOB: is empty; add a value [INVALID_FLAG]\n"},
      {{"--version"}, "fsdpctl: unknown flag '--version'; did you mean version? [INVALID_FLAG]\n"},
      {{"help"}, "fsdpctl: unknown command 'help'; did you mean --help? [INVALID_FLAG]\n"},
      {{"validate", "job.yaml"},
       "fsdpctl: unknown argument 'job.yaml'; did you mean -f job.yaml? [INVALID_FLAG]\n"},
      {{"get\x1b[31m"}, "fsdpctl: unknown command 'get\\x1b[31m'"},
      {{"nodes", "--server", "http://a:1"}, "fsdpctl: --server: 'http://a:1' is a URL; write only HOST:PORT"},
      {{"nodes", "--timeout", "0"},
       "fsdpctl: --timeout: '0' is not a number of seconds above 0 and at most 86400 (1 day) "
       "[INVALID_FLAG]\n"},
      {{"nodes", "--timeout", "86401"},
       "fsdpctl: --timeout: '86401' is not a number of seconds above 0 and at most 86400 (1 day) "
       "[INVALID_FLAG]\n"},
  };
  for (const auto& [arguments, message] : cases) {
    EXPECT_EQ(Run(arguments), kExitUsage);
    EXPECT_EQ(err_.substr(0, message.size()), message);
    EXPECT_EQ(out_, "");
  }
}

TEST_F(CommandsTest, SubmitSendsSpecAndPrintsId) {
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
  EXPECT_EQ(Run({"submit", "-f", "-", "--set", "train.steps=7", "--request-id", "mine"}, kSpec), 0);
  MutexLock lock(&mutex);
  EXPECT_EQ(request_ids.size(), 2u);
  EXPECT_EQ(request_ids.count("mine"), 1u);
}

TEST_F(CommandsTest, LocatesRejectedField) {
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

TEST_F(CommandsTest, RejectsParseErrorsWithoutCoordinator) {
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
TEST_F(CommandsTest, ReportsParseRuleAndMemoryErrorsInFileOrder) {
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
TEST_F(CommandsTest, KeepsErrorAmongManyWarnings) {
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

TEST_F(CommandsTest, RejectedSubmitPrintsJson) {
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
TEST_F(CommandsTest, OfflineValidateAndPlanAgree) {
  server_.Stop();
  for (const char* command : {"validate", "plan"}) {
    EXPECT_EQ(Run({command, "-f", file_, "--offline", "--set", "resources.memory_budget_bytes=1000"}),
              kExitSpecRefused);
    EXPECT_NE(err_.find("[memory_over_budget]"), std::string::npos) << err_;
  }
}

// Regression: validate accepted a missing checkpoint without a note, and the job failed at launch.
TEST_F(CommandsTest, ValidateListsUncheckedNodePaths) {
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
TEST_F(CommandsTest, AppliedFixHasPredictedPeak) {
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

TEST_F(CommandsTest, ValidatesAndPlansOffline) {
  server_.Stop();
  EXPECT_EQ(Run({"validate", "-f", file_, "--offline", "--set", "resources.device=cpu"}), 0) << err_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--set", "resources.device=cpu"}), 0) << err_;
  for (const char* word : {"main_params", "optimizer", "gradients", "program "}) {
    EXPECT_NE(out_.find(word), std::string::npos) << out_;
  }
  EXPECT_EQ(Run({"validate", "-f", file_, "--offline", "--set", "train.steps=-1"}), kExitSpecRefused);
  EXPECT_NE(err_.find("--set train.steps=-1:1:1: error: "), std::string::npos) << err_;
}

TEST_F(CommandsTest, PlanWritesPredictionAndPicture) {
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

TEST_F(CommandsTest, PlanShowsSnapshotCost) {
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

TEST_F(CommandsTest, PlanReportsInvalidProfile) {
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

TEST_F(CommandsTest, PlanSendsProfile) {
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

TEST_F(CommandsTest, GetReadsAllPages) {
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

TEST_F(CommandsTest, EmptyListIsValidJson) {
  server_.on_nodes = [](const auto&, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"nodes", "-o", "json"}), 0);
  EXPECT_EQ(out_, "{\n  \"nodes\": [],\n  \"unix_nanos\": 0\n}\n");
  EXPECT_EQ(Run({"nodes", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "nodes: []\nunix_nanos: 0\n");
}

// Regression: JSON and YAML omitted zeros and had different enum names.
TEST_F(CommandsTest, DataHasZerosAndShortEnumNames) {
  server_.on_nodes = [](const auto&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_device(v1::DEVICE_CUDA);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes", "-o", "json"}), 0);
  for (const char* field : {"\"connected\": false", "\"free_slots\": 0", "\"device\": \"cuda\"",
                            "\"memory_bytes_per_slot\": 0", "\"version\": \"\""}) {
    EXPECT_NE(out_.find(field), std::string::npos) << field << " in " << out_;
  }
  EXPECT_EQ(Run({"nodes", "-o", "yaml"}), 0);
  for (const char* field :
       {"connected: false", "free_slots: 0", "device: cuda", "memory_bytes_per_slot: 0", "version: \"\""}) {
    EXPECT_NE(out_.find(field), std::string::npos) << field << " in " << out_;
  }
}

TEST_F(CommandsTest, GetShowsExistingJobsDespiteMissingOne) {
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

// Regression: an unreachable node was reported as an unreachable coordinator.
TEST_F(CommandsTest, LogsReportUnreachableNode) {
  server_.on_get = [](const auto&, auto*) { return grpc::Status::OK; };
  server_.on_logs = [](const auto&, auto*, auto*) {
    return RefusalWithDetails(grpc::StatusCode::UNAVAILABLE, "the agent of node b is not connected",
                              "UNAVAILABLE");
  };
  EXPECT_EQ(Run({"logs", "j"}), kExitUnavailable);
  EXPECT_EQ(err_, "fsdpctl: the agent of node b is not connected [UNAVAILABLE]\n");
}

TEST_F(CommandsTest, UnknownAttemptExitsWith4) {
  server_.on_get = [](const auto&, auto*) { return grpc::Status::OK; };
  server_.on_logs = [](const auto&, auto*, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "job j has attempts 1..1", "ATTEMPT_NOT_FOUND");
  };
  EXPECT_EQ(Run({"logs", "j", "--attempt", "7"}), kExitNotFound);
  EXPECT_EQ(err_, "fsdpctl: job j has attempts 1..1 [ATTEMPT_NOT_FOUND]\n");
}

// Regression: exit code 1 had four meanings in addition to a failed job.
TEST_F(CommandsTest, OtherErrorsExitWith7) {
  server_.on_cancel = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::ALREADY_EXISTS, "is \x1b[31mtaken", "REQUEST_ID_TAKEN");
  };
  EXPECT_EQ(Run({"cancel", "j"}), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: is \\x1b[31mtaken [REQUEST_ID_TAKEN]\n")
      << "control characters of an error are escaped";
}

TEST_F(CommandsTest, UnknownJobExitsWith4) {
  const auto no_job = [](const auto&, auto*) {
    return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no job 'x'", "JOB_NOT_FOUND");
  };
  server_.on_get = no_job;
  server_.on_cancel = no_job;
  for (const char* command : {"get", "describe", "logs", "cancel"}) {
    EXPECT_EQ(Run({command, "x"}), kExitNotFound);
    EXPECT_EQ(err_, "fsdpctl: no job 'x'; `fsdpctl get` lists the jobs [JOB_NOT_FOUND]\n");
  }
}

TEST_F(CommandsTest, UnreachableServerExitsWith5AndHint) {
  server_.Stop();
  EXPECT_EQ(Run({"get"}), kExitUnavailable);
  EXPECT_EQ(err_,
            absl::StrCat("fsdpctl: cannot reach the coordinator at ", server_.address(),
                         ": Connection refused; is it running? start one with fsdpd-coordinator, or set "
                         "--server/FSDPD_SERVER [COORDINATOR_UNREACHABLE]\n"));
}

TEST_F(CommandsTest, MissingResponseExitsWith6) {
  server_.on_nodes = [&](const auto&, auto*) {
    release_.WaitFor(std::chrono::hours(1));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"nodes", "--timeout", "0.3"}), kExitTimeout);
  release_.Fire();
}

TEST_F(CommandsTest, WatchExitsWithResultOfJob) {
  server_.on_watch = [](const v1::WatchJobRequest& request, grpc::ServerContext*,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id(request.id());
    update.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
    update.mutable_job()->set_revision(1);
    writer->Write(update);
    update.mutable_job()->set_state(request.id() == "good" ? v1::JOB_STATE_SUCCEEDED : v1::JOB_STATE_FAILED);
    update.mutable_job()->set_revision(2);
    update.mutable_job()->mutable_failure()->set_error("boom");
    writer->Write(update);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"watch", "good"}), kExitOk);
  EXPECT_EQ(out_, "good running\ngood succeeded after 0 steps\n");
  EXPECT_EQ(Run({"watch", "bad"}), kExitJobFailed);
  EXPECT_NE(out_.find("boom"), std::string::npos);
}

// Regression: the record was opened for a check, closed, and opened again, which the reader of a pipe took
// for the end.
TEST_F(CommandsTest, OpensRecordOnce) {
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

TEST_F(CommandsTest, FailedRecordFailsCommand) {
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

TEST_F(CommandsTest, InterruptedFollowPrintsCommands) {
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

TEST_F(CommandsTest, LogsPrefixRankOnlyIfSeveral) {
  const auto nodes = std::make_shared<std::atomic<int64_t>>(2);
  server_.on_get = [nodes](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->mutable_spec()->mutable_resources()->set_nodes(*nodes);
    return grpc::Status::OK;
  };
  server_.on_logs = [](const v1::TailLogsRequest& request, grpc::ServerContext*,
                       grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse line;
    line.set_rank(1);
    line.set_line(absl::StrCat("tail ", request.tail_lines()));
    writer->Write(line);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--tail", "5"}), 0);
  EXPECT_EQ(out_, "[rank 1] tail 5\n");
  EXPECT_EQ(Run({"logs", "j", "--rank", "1"}), 0);
  EXPECT_EQ(out_, "tail 0\n");
  *nodes = 1;
  EXPECT_EQ(Run({"logs", "j"}), 0);
  EXPECT_EQ(out_, "tail 0\n");
  EXPECT_EQ(Run({"logs", "j", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "---\nrank: 1\nattempt: 0\nline: \"tail 0\"\nnotice: false\nevidence: false\n")
      << "one document per line";
}

TEST_F(CommandsTest, CancelSendsReasonAndGrace) {
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

// A shell script that replaces fsdpd-rank.
class ProfileDeviceTest : public CommandsTest {
 protected:
  std::vector<std::string> Command(const std::string& script) {
    const std::string path = dir_.File("fsdpd-rank");
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return {"profile-device", "--rank-binary", path};
  }
};

TEST_F(ProfileDeviceTest, PrintsProfileForPlan) {
  const std::string json = ToJson(*FindProfile("h100"));
  std::vector<std::string> command = Command("echo note: $* >&2; cat <<END\n" + json + "END");
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_EQ(out_, json);
  EXPECT_EQ(err_, "note: --profile-device cpu\n");
  std::ofstream(dir_.File("my.json")) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", dir_.File("my.json")}), 0) << err_;
  EXPECT_NE(out_.find("prediction for h100"), std::string::npos) << out_;

  command.insert(command.end(), {"--device", "cuda", "--ranks", "4", "-o", "yaml"});
  EXPECT_EQ(Run(command), 0) << err_;
  EXPECT_EQ(err_, "note: --profile-device cuda --ranks 4\n");
  EXPECT_EQ(out_.find("\"name\": \"h100\"\n"), 0u) << out_;
  std::ofstream(dir_.File("my.yaml")) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", dir_.File("my.yaml")}), 0) << err_;
}

TEST_F(ProfileDeviceTest, ReportsErrorOnceWithExitCode) {
  const std::string binary = dir_.File("fsdpd-rank");
  EXPECT_EQ(Run(Command("echo no device >&2; exit 1")), kExitFailed);
  EXPECT_EQ(err_, "no device\nfsdpctl: no profile: " + binary + " exited with code 1 [PROGRAM_FAILED]\n");
  EXPECT_EQ(Run(Command("exit 2")), kExitUsage);
  EXPECT_EQ(Run(Command("kill -KILL $$")), kExitFailed);
  EXPECT_EQ(err_, "fsdpctl: no profile: " + binary + " exited by signal 9 [PROGRAM_FAILED]\n");
  EXPECT_EQ(Run(Command("echo hello")), kExitFailed);
  EXPECT_NE(err_.find("fsdpctl: " + binary + " did not print a valid profile [INVALID_PROFILE]\n"),
            std::string::npos)
      << err_;
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run({"profile-device", "--rank-binary", "/no/rank"}), kExitUsage);
  EXPECT_EQ(err_,
            "fsdpctl: /no/rank: No such file or directory; set the path of fsdpd-rank with --rank-binary "
            "PATH [PROGRAM_FAILED]\n");
}

TEST_F(ProfileDeviceTest, InterruptCancelsMeasurement) {
  interrupt_.Fire();
  EXPECT_EQ(Run(Command("exec sleep 1000")), kExitInterrupted);
  EXPECT_EQ(out_, "");
}

TEST_F(CommandsTest, VersionPrintsClientAndServer) {
  server_.on_version = [](const auto&, v1::GetVersionResponse* response) {
    response->set_version("9.9");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"version"}), 0);
  EXPECT_EQ(out_, "client  0.1.0\nserver  9.9\n");
}

TEST_F(CommandsTest, EscapesQuoteInVersion) {
  server_.on_version = [](const auto&, v1::GetVersionResponse* response) {
    response->set_version("9.9\"\\\n");
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"version", "-o", "json"}), 0);
  EXPECT_EQ(out_, R"({"client": "0.1.0", "server": "9.9\"\\\n"})"
                  "\n");
  EXPECT_EQ(Run({"version", "-o", "yaml"}), 0);
  EXPECT_EQ(out_, "client: \"0.1.0\"\nserver: \"9.9\\\"\\\\\\n\"\n");
}

TEST_F(CommandsTest, GetAcceptsAllStates) {
  server_.on_list = [](const v1::ListJobsRequest&, v1::ListJobsResponse*) { return grpc::Status::OK; };
  for (int i = 0; i < v1::JobState_descriptor()->value_count(); ++i) {
    std::string state = v1::JobState_descriptor()->value(i)->name().substr(strlen("JOB_STATE_"));
    for (char& letter : state) letter = absl::ascii_tolower(letter);
    if (state != "unspecified") EXPECT_EQ(Run({"get", "--state", state}), kExitOk) << state << err_;
  }
  EXPECT_EQ(Run({"get", "--state", "unspecified"}), kExitUsage);
}

}  // namespace
}  // namespace fsdpd

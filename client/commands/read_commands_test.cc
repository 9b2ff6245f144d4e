// Tests of get, wait, diff, explain, context, completion, top and logs: exit code, stdout and stderr.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "base/temp_dir.h"
#include "client/commands/contexts.h"
#include "client/commands/field_docs.h"
#include "client/connect/outcome.h"
#include "client/flags/parse_command_line.h"
#include "client/migrate/conversion_rules.h"
#include "client/migrate/megatron_rules.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

constexpr char kSpec[] =
    "name: a\nmodel: {preset: tiny}\ndata: {synthetic: {}, sequence_length: 8}\ntrain: {steps: 3}\n";

// Sets an environment variable during its lifetime.
class Variables {
 public:
  explicit Variables(const std::vector<std::pair<const char*, const char*>>& all) {
    for (const auto& [name, value] : all) {
      setenv(name, value, 1);
      names_.push_back(name);
    }
  }
  ~Variables() {
    for (const char* name : names_) unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

class LookCommandsTest : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    setenv("FSDPD_CONFIG", config_.c_str(), 1);
    server_.on_list = [](const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
      const auto add = [&](const char* id, v1::JobState state, double loss) {
        v1::Job* job = response->add_jobs();
        job->set_id(id);
        job->set_state(state);
        if (loss > 0) job->mutable_last_step()->set_loss(loss);
      };
      add("tiny-b2", v1::JOB_STATE_RUNNING, 2);
      add("tiny-a1", v1::JOB_STATE_QUEUED, 0);
      if (request.page_size() != 2) add("big-c3", v1::JOB_STATE_RUNNING, 12);
      return grpc::Status::OK;
    };
    server_.on_get = [](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
      if (request.id() != "tiny-b2" && request.id() != "big-c3")
        return RefusalWithDetails(grpc::StatusCode::NOT_FOUND, "no such job", "JOB_NOT_FOUND");
      response->mutable_job()->set_id(request.id());
      response->mutable_job()->set_state(v1::JOB_STATE_RUNNING);
      response->mutable_job()->mutable_spec()->set_name("a");
      response->mutable_job()->mutable_spec()->mutable_model()->set_preset("tiny");
      return grpc::Status::OK;
    };
  }
  void TearDown() override {
    unsetenv("FSDPD_CONFIG");
    ServedCommandCase::TearDown();
  }

  std::string Write(const std::string& name, const std::string& text) {
    std::ofstream(dir_.File(name)) << text;
    return dir_.File(name);
  }
  std::string ReadConfig() {
    std::ostringstream text;
    text << std::ifstream(config_).rdbuf();
    return text.str();
  }

  // A watch of it: running, step 20 of 30, then succeeded.
  void ServeWatch() {
    server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext*,
                          grpc::ServerWriter<v1::WatchJobResponse>* writer) {
      v1::WatchJobResponse update;
      v1::Job* job = update.mutable_job();
      job->set_id("tiny-b2");
      job->set_revision(1);
      job->set_state(v1::JOB_STATE_RUNNING);
      job->mutable_spec()->mutable_train()->set_steps(30);
      const v1::Job running = *job;
      writer->Write(update);
      update.mutable_step()->set_step(20);
      writer->Write(update);
      *update.mutable_job() = running;
      update.mutable_job()->set_revision(2);
      update.mutable_job()->set_state(v1::JOB_STATE_SUCCEEDED);
      update.mutable_job()->set_reason("all ranks finished");
      writer->Write(update);
      return grpc::Status::OK;
    };
  }

  std::istringstream in_;
  std::ostringstream printed_;
  TempDir dir_;
  const std::string config_ = dir_.File("contexts.yaml");
};

// --- get ---------------------------------------------------------------------------------------------------

TEST_F(LookCommandsTest, GetPrintsNamesPathsAndSpecs) {
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

TEST_F(LookCommandsTest, GetPrintsStepTimeline) {
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

TEST_F(LookCommandsTest, RejectsInvalidOutputWithoutCoordinator) {
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

TEST_F(LookCommandsTest, RejectsListFlagsWithJob) {
  EXPECT_EQ(Run({"get", "tiny-b2", "--state", "queued"}), kExitUsage);
  EXPECT_NE(err_.find("--state"), std::string::npos) << err_;
  EXPECT_NE(err_.find("; remove one of them"), std::string::npos) << err_;
  EXPECT_EQ(Run({"get", "tiny-b2", "-o", "spec", "-w"}), kExitUsage);
  EXPECT_NE(err_.find("-o spec is not supported with -w, because a spec never changes; remove -w"),
            std::string::npos)
      << err_;
}

TEST_F(LookCommandsTest, RejectsUnknownJsonPathField) {
  EXPECT_EQ(Run({"get", "-o", "jsonpath={.jobs[*].sate}"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean state?"), std::string::npos) << err_;
}

TEST_F(LookCommandsTest, GetSortsAndLimits) {
  EXPECT_EQ(Run({"get", "-o", "name", "--sort-by", "last_step.loss"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\nbig-c3\ntiny-a1\n") << "numeric order, jobs without a value last";
  EXPECT_EQ(Run({"get", "--sort-by", "age"}), kExitUsage);
  EXPECT_EQ(err_.find("fsdpctl: --sort-by: unknown field 'age'"), 0u) << err_;
  EXPECT_EQ(Run({"get", "-o", "name", "--sort-by=-last_step.loss", "--limit", "1"}), kExitOk);
  EXPECT_EQ(out_, "big-c3\n");
  EXPECT_EQ(Run({"get", "-o", "name", "--limit", "2"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\ntiny-a1\n");
}

TEST_F(LookCommandsTest, CompletesUniqueIdPrefix) {
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

TEST_F(LookCommandsTest, UnknownIdDoesNotListAllJobs) {
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

TEST_F(LookCommandsTest, WatchPrintsChangedJobs) {
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

// --- wait --------------------------------------------------------------------------------------------------

TEST_F(LookCommandsTest, WaitReturnsWhenConditionIsMet) {
  ServeWatch();
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=running"}), kExitOk) << err_;
  EXPECT_EQ(out_, "tiny-b2 running\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "step=20"}), kExitOk) << err_;
  EXPECT_EQ(out_, "tiny-b2 running at step 20\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "ended"}), kExitOk) << err_;
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=succeeded", "-o", "json"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("{\n  \"id\": \"tiny-b2\""), 0u) << out_;
}

TEST_F(LookCommandsTest, WaitExitsWith1WhenConditionIsImpossible) {
  ServeWatch();
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "state=failed"}), kExitJobFailed);
  EXPECT_NE(err_.find("tiny-b2 can no longer reach state=failed: it is succeeded: all ranks finished"),
            std::string::npos)
      << err_;
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "step=31"}), kExitJobFailed);
  EXPECT_NE(err_.find("it has 30 steps"), std::string::npos) << err_;
}

TEST_F(LookCommandsTest, WaitExitsWith6AfterTimeout) {
  server_.on_watch = [](const v1::WatchJobRequest&, grpc::ServerContext* context,
                        grpc::ServerWriter<v1::WatchJobResponse>* writer) {
    v1::WatchJobResponse update;
    update.mutable_job()->set_id("tiny-b2");
    update.mutable_job()->set_revision(1);
    update.mutable_job()->set_state(v1::JOB_STATE_QUEUED);
    writer->Write(update);
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(5));
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"wait", "tiny-b2", "big-c3", "--for", "ended", "--timeout", "0.5"}), kExitTimeout);
  EXPECT_NE(err_.find("tiny-b2 did not reach ended within --timeout; it is queued"), std::string::npos)
      << err_;
}

TEST_F(LookCommandsTest, WaitRejectsTooManyJobs) {
  std::vector<std::string> arguments(65, "tiny-b2");
  arguments.insert(arguments.begin(), "wait");
  EXPECT_EQ(Run(arguments), kExitUsage);
  EXPECT_NE(err_.find("too many jobs (got 65, at most 64)"), std::string::npos) << err_;
}

TEST_F(LookCommandsTest, MissingJobIsDeleted) {
  EXPECT_EQ(Run({"wait", "gone-1", "--for", "deleted"}), kExitOk) << err_;
  EXPECT_EQ(out_, "gone-1 deleted\n");
  EXPECT_EQ(Run({"wait", "tiny-b2", "--for", "deleted", "--timeout", "0.2"}), kExitTimeout);
}

TEST_F(LookCommandsTest, WaitForDeletionSurvivesFailedCall) {
  std::atomic<int> calls{0};
  server_.on_get = [&](const v1::GetJobRequest& request, v1::GetJobResponse* response) {
    response->mutable_job()->set_id(request.id());
    const int call = ++calls;
    if (call < 2) return grpc::Status::OK;
    return call < 4 ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no answer")
                    : grpc::Status(grpc::StatusCode::NOT_FOUND, "no such job");
  };
  server_.on_list = [](const auto&, v1::ListJobsResponse*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"wait", "j", "--for", "deleted"}), kExitOk) << err_;
  EXPECT_EQ(out_, "j deleted\n");
  EXPECT_GE(calls, 4);
  server_.Stop();  // Before `calls` is destroyed.
}

// --- diff and explain --------------------------------------------------------------------------------------

TEST_F(LookCommandsTest, DiffComparesResolvedSpecs) {
  const std::string first = Write("a.yaml", kSpec);
  const std::string same = Write("b.yaml", absl::StrCat(kSpec, "resources: {nodes: 1}\n"));
  EXPECT_EQ(Run({"diff", first, same}), kExitOk) << out_ << err_;
  EXPECT_EQ(out_, "");
  const std::string other = Write("c.yaml", absl::StrCat(kSpec, "optimizer: {adamw: {lr: 0.5}}\n"));
  EXPECT_EQ(Run({"diff", first, "-f", other}), kExitSpecsDiffer);
  EXPECT_NE(out_.find("optimizer.adamw.lr"), std::string::npos) << out_;
  EXPECT_EQ(Run({"diff", first, other, "-o", "json"}), kExitSpecsDiffer);
  EXPECT_EQ(out_.find("[{\"field\": \"optimizer.adamw.lr\", \"first\": "), 0u) << out_;
  EXPECT_EQ(Run({"diff", "tiny-b2", first}), kExitSpecsDiffer) << "a job's";
  EXPECT_NE(out_.find("train.steps"), std::string::npos) << out_;
  EXPECT_EQ(Run({"diff", "nothere", first}), kExitNotFound);
  EXPECT_EQ(err_.find("nothere: no such file; "), 0u) << err_;
  EXPECT_EQ(Run({"diff", first}), kExitUsage);
}

TEST_F(LookCommandsTest, ExplainNeedsNoCoordinator) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "train.micro_batch"}), kExitOk);
  EXPECT_EQ(out_.find("train.micro_batch  <integer>\n  "), 0u) << out_;
  EXPECT_EQ(Run({"explain", "precision.main_grads"}), kExitOk);
  EXPECT_NE(out_.find("\nrules:\n  main_grads_not_fp16\n    main_grads must be fp32 or bf16\n"),
            std::string::npos)
      << "validation rejects some values of the type: " << out_;
  EXPECT_EQ(Run({"explain", "model.preset"}), kExitOk);
  EXPECT_NE(out_.find("\nvalues:\n  tiny\n"), std::string::npos)
      << "preset_unknown sends readers here: " << out_;
  EXPECT_NE(out_.find("\n  qwen3-235b-a22b\n"), std::string::npos) << out_;
  EXPECT_EQ(Run({"explain", "parallel"}), kExitOk);
  EXPECT_NE(out_.find("\n  tensor  <integer>\n"), std::string::npos) << out_;
  EXPECT_EQ(Run({"explain", "preset_unknown"}), kExitOk) << "a rule: " << err_;
  EXPECT_EQ(out_,
            "preset_unknown  <rule>\n  Rule: the preset must be a built-in one\n  Field: model.preset\n"
            "  If violated: an error; the job is rejected\n");
  for (const char* rule : {"profile_no_map", "profile_unknown"})
    EXPECT_EQ(Run({"explain", rule}), kExitOk) << "of a device profile: " << err_;
  EXPECT_EQ(Run({"explain", "budget_above_offer"}), kExitOk) << "one that the plan finds: " << err_;
  EXPECT_NE(out_.find("Field: resources.memory_budget_bytes\n  If violated: a warning\n"), std::string::npos)
      << out_;
  EXPECT_EQ(Run({"explain", "node_selector_meets_nodes"}), kExitOk) << "one of the coordinator's: " << err_;
  EXPECT_NE(out_.find("Field: resources.node_selector\n  If violated: a warning\n"), std::string::npos)
      << out_;
  EXPECT_EQ(Run({"explain", "two_of_oneof"}), kExitOk) << "one of the text: " << err_;
  EXPECT_EQ(Run({"explain", "token_file_here"}), kExitOk) << "one that validate finds: " << err_;
  EXPECT_EQ(Run({"explain", "lr_positive"}), kExitOk);
  EXPECT_NE(out_.find("\nlr_positive  <rule>\n"), std::string::npos)
      << "specs and migrate both have this rule: " << out_;
  EXPECT_EQ(Run({"explain", "preset_unknow"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean preset_unknown?"), std::string::npos) << err_;
  EXPECT_EQ(Run({"explain", "trian"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean train?"), std::string::npos) << err_;
  EXPECT_EQ(Run({"explain", "hf_not_know"}), kExitUsage);
  EXPECT_NE(err_.find("; did you mean hf_not_known?"), std::string::npos) << "run together: " << err_;
  EXPECT_EQ(Run({"explain", "BAD_SPEC"}), kExitUsage);
  EXPECT_NE(err_.find("; renamed to INVALID_SPEC [INVALID_FLAG]\n"), std::string::npos) << err_;
}

// Regression: the rule out_of_range was printed for the error id OUT_OF_RANGE.
TEST_F(LookCommandsTest, ExplainDistinguishesReasonFromRule) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "OUT_OF_RANGE"}), kExitOk);
  EXPECT_EQ(out_.find("OUT_OF_RANGE  <error id>\n"), 0U) << out_;
  EXPECT_EQ(Run({"explain", "out_of_range"}), kExitOk);
  EXPECT_EQ(out_.find("out_of_range  <rule>\n"), 0U) << out_;
}

// Regression: these rules were unknown, although migrate prints their ids.
TEST_F(LookCommandsTest, ExplainIncludesMigrateRules) {
  server_.Stop();
  for (const std::vector<MigrateRule>& rules : {MegatronRules(), ConversionRules()}) {
    for (const MigrateRule& rule : rules) {
      EXPECT_EQ(Run({"explain", rule.id}), kExitOk) << rule.id << err_;
      EXPECT_NE(out_.find(rule.id + "  <rule>\n"), std::string::npos) << out_;
    }
  }
  EXPECT_EQ(Run({"explain", "dropout"}), kExitOk);
  EXPECT_EQ(out_,
            "dropout  <rule>\n  Rule: dropout becomes 0: it is not supported\n"
            "  Reported by: fsdpctl migrate\n  If violated: a warning\n");
}

// tests/tidy/test_error_ids.py compares the registry with the ids in the code.
TEST_F(LookCommandsTest, ExplainsErrorIds) {
  server_.Stop();
  for (const FieldDoc& id : ErrorIds()) {
    EXPECT_EQ(Run({"explain", id.name}), kExitOk) << err_;
    EXPECT_TRUE(absl::StrContains(out_, absl::StrCat(id.name, "  <", id.type, ">\n  "))) << out_;
    EXPECT_TRUE(absl::StrContains(out_, "\n  Fix: ")) << out_;
  }
  EXPECT_EQ(Run({"explain", "role_required"}), kExitOk) << err_;
  EXPECT_EQ(
      out_,
      "ROLE_REQUIRED  <error id>\n"
      "  PERMISSION_DENIED. The call requires a higher role: metadata has both, \"needed\" and \"role\".\n"
      "  Fix: Ask an operator for that role, or to make the call.\n");
  EXPECT_EQ(Run({"explain", "hang"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("HANG  <failure cause>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "data"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("failure cause"), std::string::npos) << "data is a field: " << out_;
  EXPECT_EQ(Run({"explain", "NODE_NOT_IDEL"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean NODE_NOT_IDLE?"), std::string::npos) << err_;
}

TEST_F(LookCommandsTest, ExplainIgnoresCaseAndPrefix) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "LR_POSITIVE"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("lr_positive  <rule>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "REASON_NODE_NOT_IDLE"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("NODE_NOT_IDLE  <error id>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "Job.waiting"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("job.waiting  <"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "LR_POSITIV"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean lr_positive?"), std::string::npos) << err_;
}

// --- context and completion --------------------------------------------------------------------------------

TEST_F(LookCommandsTest, ContextSelectsServer) {
  Write("contexts.yaml", absl::StrCat("# mine\ncontexts:\n  lab: {server: '", server_.address(),
                                      "'}\n  far: {server: 'far.example:7777', token_file: t}\n"));
  EXPECT_EQ(RunCommand({"--context", "lab", "get", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"context", "show"}), kExitUsage);
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_EQ(ReadConfig().find("current: lab\n# mine\ncontexts:"), 0u) << ReadConfig();
  EXPECT_EQ(RunCommand({"get", "-o", "name"}), kExitOk) << "the current one: " << err_;
  EXPECT_EQ(RunCommand({"context", "use", "far"}), kExitOk) << err_;
  EXPECT_EQ(ReadConfig().find("current: far\n# mine\n"), 0u) << ReadConfig();
  EXPECT_EQ(Run({"get", "-o", "name"}), kExitOk) << "--server counts before it: " << err_;
  EXPECT_EQ(RunCommand({"context", "list"}), kExitOk);
  EXPECT_TRUE(absl::StrContains(out_, "*        far")) << out_;
  EXPECT_TRUE(absl::StrContains(out_, dir_.File("t"))) << "relative to the file's directory: " << out_;
  EXPECT_EQ(RunCommand({"--context", "lba", "get"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean lab?"), std::string::npos) << err_;
}

TEST_F(LookCommandsTest, FlagsOverrideVariablesAndTokenStaysWithItsServer) {
  Write("contexts.yaml", "contexts:\n  lab: {server: 'lab.example:7777', token_file: lab.token}\n");
  Variables variables({{"FSDPD_SERVER", "other.example:7777"},
                       {"FSDPD_TOKEN", "others"},
                       {"FSDPD_COORDINATOR_CA", "other.crt"}});
  CommandLine line;
  Console console{in_, printed_, printed_};
  const auto take = [&](const std::vector<std::string>& arguments) {
    line = {};
    EXPECT_EQ(ParseCommandLine(arguments, &line, &console), std::nullopt);
    return ApplyContext(&line);
  };
  EXPECT_TRUE(take({"get", "--context=lab"}).ok());
  EXPECT_EQ(line.server, "lab.example:7777");
  EXPECT_EQ(line.token_file, dir_.File("lab.token"));
  EXPECT_EQ(line.coordinator_ca, "");
  EXPECT_FALSE(line.takes_token_variable);
  EXPECT_FALSE(take({"--server", "here:1", "get", "--context", "lab"}).ok());
  EXPECT_TRUE(take({"get"}).ok());
  EXPECT_EQ(line.server, "other.example:7777");
  EXPECT_EQ(line.token_file, "");
  const std::vector<std::pair<const char*, const char*>> context = {{"FSDPD_CONTEXT", "lab"}};
  const Variables both(context);
  EXPECT_FALSE(take({"get"}).ok());
  EXPECT_TRUE(take({"--server", "here:1", "get"}).ok());
  EXPECT_EQ(line.server, "here:1");
  EXPECT_EQ(line.token_file, "");
}

TEST_F(LookCommandsTest, WatchReportsLostConnection) {
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

TEST_F(LookCommandsTest, MissingCurrentContextIsReported) {
  Write("contexts.yaml",
        absl::StrCat("current: gone\ncontexts:\n  lab: {server: '", server_.address(), "'}\n"));
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("current context: unknown context 'gone'"), std::string::npos) << err_;
  EXPECT_EQ(RunCommand({"--context", "lab", "get", "-o", "name"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"context", "list"}), kExitOk);
  EXPECT_NE(err_.find("the current context, gone, does not exist"), std::string::npos) << err_;
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_EQ(RunCommand({"get", "-o", "name"}), kExitOk) << err_;
}

TEST_F(LookCommandsTest, ContextUsePreservesLinkAndText) {
  const std::string real =
      Write("dotfiles.yaml", "# mine\n---\ncontexts:\n  lab: {server: 'lab.example:7777'}\n");
  std::filesystem::permissions(real,
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::filesystem::create_symlink("dotfiles.yaml", config_);
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitOk) << err_;
  EXPECT_TRUE(std::filesystem::is_symlink(config_));
  EXPECT_EQ(ReadConfig(), "# mine\n---\ncurrent: lab\ncontexts:\n  lab: {server: 'lab.example:7777'}\n");
  EXPECT_EQ(std::filesystem::status(real).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  const std::filesystem::directory_iterator left(std::filesystem::path(real).parent_path());
  EXPECT_EQ(std::distance(begin(left), end(left)), 2) << "only the file and the link remain";
  Write("dotfiles.yaml", "{contexts: {lab: {server: 'lab.example:7777'}}}\n");
  EXPECT_EQ(RunCommand({"context", "use", "lab"}), kExitUsage);
  EXPECT_NE(err_.find("add 'current: lab' yourself"), std::string::npos) << err_;
  EXPECT_EQ(ReadConfig(), "{contexts: {lab: {server: 'lab.example:7777'}}}\n");
}

TEST_F(LookCommandsTest, LocatesErrorInContextsFile) {
  Write("contexts.yaml", "contexts:\n  lab: {sever: here:1}\n");
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("contexts.yaml:2:9: unknown field sever; did you mean server?"), std::string::npos)
      << err_;
  EXPECT_EQ(RunCommand({"explain"}), kExitOk) << "offline commands do not read it";
  Write("contexts.yaml", "contexts:\n  lab: {server: 'a:1'}\n  lab: {server: 'b:1'}\n");
  EXPECT_EQ(RunCommand({"get"}), kExitUsage);
  EXPECT_NE(err_.find("contexts.yaml:3:3: error: contexts.lab is written twice; keep one"), std::string::npos)
      << err_;
  const auto expect_error = [&](const std::string& text) {
    for (const std::vector<std::string>& command :
         std::vector<std::vector<std::string>>{{"get"}, {"context", "list"}, {"context", "use", "zz"}}) {
      EXPECT_EQ(RunCommand(command), kExitUsage) << text;
      EXPECT_NE(err_.find(text), std::string::npos) << err_;
      EXPECT_NE(err_.find(" [INVALID_CONTEXT]\n"), std::string::npos) << err_;
    }
  };
  Write("contexts.yaml", "contexts: [\n");
  expect_error("contexts.yaml:");
  std::filesystem::remove(config_);
  std::filesystem::create_directory(config_);
  expect_error("contexts.yaml: Is a directory");
}

TEST_F(LookCommandsTest, CompletionListsMatchingNames) {
  server_.on_nodes = [](const auto&, v1::ListNodesResponse* response) {
    response->add_nodes()->set_name("node-0");
    return grpc::Status::OK;
  };
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cancel", "t"}), kExitOk);
  EXPECT_EQ(out_, "tiny-b2\ntiny-a1\n");
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "delete", ""}), kExitOk);
  EXPECT_EQ(out_, "") << "none has ended";
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cordon", ""}), kExitOk);
  EXPECT_EQ(out_, "node-0\n");
  server_.Stop();
  EXPECT_EQ(RunCommand({"__complete", "--server", server_.address(), "cordon", ""}), kExitOk);
  EXPECT_EQ(out_ + err_, "") << "no coordinator responds";
}

// --- top and logs ------------------------------------------------------------------------------------------

TEST_F(LookCommandsTest, TopPrintsOnceWithoutTerminal) {
  server_.on_nodes = [](const auto&, auto*) { return grpc::Status::OK; };
  EXPECT_EQ(Run({"top"}), kExitOk) << err_;
  EXPECT_NE(out_.find("big-c3"), std::string::npos) << out_;
  EXPECT_EQ(out_.find("tiny-a1"), std::string::npos) << "it waits\n" << out_;
  EXPECT_EQ(out_.find('\x1b'), std::string::npos);
}

TEST_F(LookCommandsTest, LogsOfPreviousAttempt) {
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    response->mutable_job()->set_attempt(3);
    return grpc::Status::OK;
  };
  server_.on_logs = [](const v1::TailLogsRequest& request, grpc::ServerContext*,
                       grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse log;
    log.set_line(absl::StrCat("attempt ", request.attempt()));
    writer->Write(log);
    log.set_line("other");
    writer->Write(log);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--previous", "--grep", "^attempt"}), kExitOk) << err_;
  EXPECT_EQ(out_, "attempt 2\n");
  EXPECT_EQ(Run({"logs", "j", "-p", "--attempt", "1"}), kExitUsage);
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    response->mutable_job()->set_attempt(1);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--previous"}), kExitNotFound);
}

// Regression: the coordinator's error named the API field `tail_lines` instead of the flag.
TEST_F(LookCommandsTest, RejectsInvalidTail) {
  for (const char* lines : {"0", "-1", "100001", "ten"}) {
    EXPECT_EQ(Run({"logs", "j", absl::StrCat("--tail=", lines)}), kExitUsage) << lines;
    EXPECT_EQ(
        err_,
        absl::StrCat(
            "fsdpctl: --tail: '", lines,
            "' is not an integer from 1 to 100000 [INVALID_FLAG]\nrun `fsdpctl logs --help` for usage\n"));
  }
}

TEST_F(LookCommandsTest, LogsEvidenceRejectsOldCoordinator) {
  const auto knows = std::make_shared<std::atomic<bool>>(true);
  server_.on_get = [](const auto&, v1::GetJobResponse* response) {
    response->mutable_job()->set_id("j");
    return grpc::Status::OK;
  };
  server_.on_logs = [knows](const v1::TailLogsRequest& request, grpc::ServerContext*,
                            grpc::ServerWriter<v1::TailLogsResponse>* writer) {
    v1::TailLogsResponse line;
    line.set_line("thread 7");
    line.set_evidence(*knows && request.evidence());
    writer->Write(line);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"logs", "j", "--evidence"}), 0);
  EXPECT_EQ(out_, "thread 7\n");
  *knows = false;
  EXPECT_EQ(Run({"logs", "j", "--evidence"}), kExitFailed);
  EXPECT_NE(err_.find("--evidence is not supported by this coordinator"), std::string::npos);
  for (const char* other : {"--follow", "--tail=3", "--since=5m"})
    EXPECT_EQ(Run({"logs", "j", "--evidence", other}), kExitUsage) << other;
}

}  // namespace
}  // namespace fsdpd

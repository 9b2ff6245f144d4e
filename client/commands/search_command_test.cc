// Tests of `plan --search`, offline and with a coordinator: output, written files, and the report when
// nothing fits.
#include <absl/time/clock.h>

#include <atomic>
#include <fstream>
#include <sstream>

#include "base/temp_dir.h"
#include "client/connect/outcome.h"
#include "client/testing/command_case.h"
#include "fsdp/package/testing/package_writer.h"
#include "fsdp/plan/spec/testing/small_package.h"

namespace fsdpd {
namespace {

constexpr char kSpec[] =
    "name: a\nmodel: {preset: llama3-8b}\ndata: {synthetic: {}, sequence_length: 8192}\n"
    "train: {steps: 3, global_batch: 16}\nresources: {ranks_per_node: 4}\n";

class SearchCommandTest : public ServedCommandCase {
 protected:
  void SetUp() override {
    ServedCommandCase::SetUp();
    file_ = dir_.File("job.yaml");
    std::ofstream(file_) << kSpec;
  }

  TempDir dir_;
  std::string file_;
};

TEST_F(SearchCommandTest, ShowsFastestAndSpecAsWritten) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200"}), kExitOk) << err_;
  for (const char* word :
       {"a: 8.0 B parameters on 4 ranks, 16 samples of 8192 tokens per step, h200 with 134.3 GiB",
        " equivalent configurations: ", "MESH", "\n  1 ", "\n  5 ", "\n  as written "}) {
    EXPECT_NE(out_.find(word), std::string::npos) << word << " in " << out_;
  }
  EXPECT_EQ(out_.find("NOT ALL"), std::string::npos) << out_;
}

// Regression: 0 tokens per step, and micro-batches of 1 sample as written.
TEST_F(SearchCommandTest, ShowsShapeOfPackage) {
  server_.Stop();
  WriteFile(dir_.File("mine.fsdpd"), PackageOf(SmallPackage(), {}));
  std::ofstream(file_) << "name: a\nmodel: {package: {path: mine.fsdpd}}\ndata: {synthetic: {}}\n"
                          "train: {steps: 3, global_batch: 12}\nresources: {ranks_per_node: 2}\n";
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200"}), kExitOk) << err_;
  EXPECT_NE(out_.find("12 samples of 32 tokens per step"), std::string::npos) << out_;
  const size_t as_written = out_.find("as written");
  ASSERT_NE(as_written, std::string::npos) << out_;
  EXPECT_NE(out_.find(" 2 x 3 ", as_written), std::string::npos) << out_;
}

TEST_F(SearchCommandTest, ExposedTimeEqualsPlan) {
  server_.Stop();
  std::ofstream(file_) << kSpec << "parallel: {tensor: 2}\n";
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", "h200"}), kExitOk) << err_;
  const size_t at = out_.find("exposed ");
  ASSERT_NE(at, std::string::npos) << out_;
  const size_t number = out_.find_first_of("0123456789", at);
  const std::string exposed = out_.substr(number, out_.find(" (", number) - number);
  EXPECT_NE(out_.find("tensor exchanges"), std::string::npos) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--profile", "h200", "--search"}), kExitOk) << err_;
  const size_t as_written = out_.find("as written");
  ASSERT_NE(as_written, std::string::npos) << out_;
  EXPECT_NE(out_.find(" " + exposed + " ", as_written), std::string::npos) << exposed << " in " << out_;
}

TEST_F(SearchCommandTest, ShowsPipelineSchedule) {
  server_.Stop();
  std::ofstream(file_)
      << "name: a\nmodel: {preset: llama3-8b}\ndata: {synthetic: {}, sequence_length: 8192}\n"
         "train: {steps: 3, global_batch: 32}\nparallel: {pipeline: 8}\nfsdp: {strategy: no_shard}\n"
         "resources: {ranks_per_node: 8, device: cpu}\n";
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200", "--hold", "fsdp",
                 "--hold", "parallel.pipeline"}),
            kExitOk)
      << err_;
  for (const char* mesh : {"pipeline 8, zero_bubble ", "pipeline 8, 2 chunks per stage ", "pipeline 8  "})
    EXPECT_NE(out_.find(mesh), std::string::npos) << mesh << " in " << out_;
}

TEST_F(SearchCommandTest, WrittenSpecReproducesPlan) {
  server_.Stop();
  const std::string fastest = dir_.File("fastest.yaml");
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200", "--write", fastest, "-o",
                 "json"}),
            kExitOk)
      << err_;
  const size_t hash = out_.find("\"program_hash\": ");
  ASSERT_NE(hash, std::string::npos) << out_;
  const std::string of_first = out_.substr(hash, 34);
  EXPECT_EQ(Run({"plan", "-f", fastest, "--offline", "--profile", "h200", "-o", "json"}), kExitOk) << err_;
  EXPECT_NE(out_.find(of_first), std::string::npos) << of_first;
  EXPECT_EQ(Run({"validate", "-f", fastest, "--offline"}), kExitOk) << err_;
}

TEST_F(SearchCommandTest, PrintsResultIfWriteFails) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200", "--write", "/dev/full"}),
            kExitUsage);
  EXPECT_NE(out_.find("\n  1 "), std::string::npos) << out_;
  EXPECT_NE(err_.find("--write"), std::string::npos) << err_;
}

TEST_F(SearchCommandTest, ChecksOutputBeforeSearch) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--search", "--write", dir_.File("none/fastest.yaml")}), kExitUsage);
  EXPECT_NE(err_.find("--write " + dir_.File("none/fastest.yaml") + ": no such directory: "),
            std::string::npos)
      << err_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--search", "--write", dir_.path()}), kExitUsage);
  EXPECT_NE(err_.find(": is a directory"), std::string::npos) << err_;
}

TEST_F(SearchCommandTest, ShowsClosestConfiguration) {
  server_.Stop();
  const std::string fastest = dir_.File("fastest.yaml");
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--set", "resources.memory_budget_bytes=8GiB",
                 "--write", fastest}),
            kExitSpecRefused);
  EXPECT_NE(out_.find("no configuration fits; the closest one needs "), std::string::npos) << out_;
  EXPECT_NE(out_.find("offload was not searched"), std::string::npos) << out_;
  EXPECT_NE(out_.find("\n  closest "), std::string::npos) << out_;
  EXPECT_NE(err_.find(": no configuration fits [search_found_none]\n"), std::string::npos) << err_;
  EXPECT_FALSE(std::ifstream(fastest).good());
}

TEST_F(SearchCommandTest, LocatesErrorsOfSpec) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--set", "model.preset=llama3-9b"}),
            kExitSpecRefused);
  EXPECT_NE(err_.find("error: model.preset"), std::string::npos) << err_;
}

TEST_F(SearchCommandTest, SendsProfileAndHeldFields) {
  server_.on_search = [](const v1::SearchPlansRequest& request, v1::SearchPlansResponse* response) {
    EXPECT_EQ(request.spec().name(), "a");
    EXPECT_EQ(request.profile().name(), "h100");
    EXPECT_EQ(request.hold_size(), 2);
    v1::PlanSearch* search = response->mutable_search();
    search->set_world_size(4);
    v1::PlanSearch::Configuration* way = search->add_found();
    way->mutable_prediction()->set_step_seconds(1.25);
    way->mutable_mesh()->set_shard(4);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--search", "--profile", "h100", "--hold", "fsdp", "--hold",
                 "parallel.tensor"}),
            kExitOk)
      << err_;
  EXPECT_NE(out_.find("1250 ms"), std::string::npos) << out_;
  EXPECT_NE(out_.find("shard 4"), std::string::npos) << out_;
  EXPECT_NE(out_.find("INCOMPLETE"), std::string::npos) << out_;
}

TEST_F(SearchCommandTest, ShowsBudgetAndFittingCount) {
  server_.on_search = [](const v1::SearchPlansRequest&, v1::SearchPlansResponse* response) {
    v1::PlanSearch* search = response->mutable_search();
    search->set_complete(true);
    search->set_budget_bytes(int64_t{3} << 30);
    search->set_budget_from_profile(true);
    search->set_fitting(27);
    search->set_simulated(20);
    search->set_simulated_fitting(3);
    v1::Mesh* mesh = search->add_found()->mutable_mesh();
    mesh->set_shard(2);
    mesh->set_expert(4);
    mesh->set_tensor(2);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitOk) << err_;
  EXPECT_NE(out_.find("reports its memory; using 3.00 GiB of the profile\n"), std::string::npos) << out_;
  EXPECT_NE(out_.find("27 estimated to fit; simulated the best 20: 3 fit, in "), std::string::npos) << out_;
  EXPECT_NE(out_.find("shard 2 x expert 4 x tensor 2"), std::string::npos) << out_;
}

// Regression: the text was "full on 80, then selective, 80 offloaded".
TEST_F(SearchCommandTest, ShowsActivationCheckpointing) {
  server_.on_search = [](const auto&, v1::SearchPlansResponse* response) {
    const auto add = [&](v1::Recompute recompute, int64_t layers, int64_t offloaded) {
      v1::Fsdp* fsdp = response->mutable_search()->add_found()->mutable_spec()->mutable_fsdp();
      fsdp->set_recompute(recompute);
      if (layers > 0) fsdp->set_recompute_layers(layers);
      if (offloaded > 0) fsdp->mutable_offload()->set_activation_layers(offloaded);
    };
    add(v1::RECOMPUTE_FULL, 80, 80);
    add(v1::RECOMPUTE_FULL, 49, 0);
    add(v1::RECOMPUTE_SELECTIVE, 1, 0);
    add(v1::RECOMPUTE_NONE, 0, 1);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitOk) << err_;
  for (const char* words :
       {"  ACTIVATION CHECKPOINTING\n",
        "  full on at most 80 layers, selective on the rest; activations of 80 layers offloaded\n",
        "  full on 49 layers, selective on the rest\n", "  selective on 1 layer\n",
        "  none; activations of 1 layer offloaded\n"})
    EXPECT_NE(out_.find(words), std::string::npos) << words << " in " << out_;
}

TEST_F(SearchCommandTest, MfuOfFp8NamesBf16Peak) {
  std::atomic<v1::DType> compute{v1::DTYPE_BF16};
  server_.on_search = [&](const auto&, v1::SearchPlansResponse* response) {
    v1::PlanSearch::Configuration* way = response->mutable_search()->add_found();
    way->mutable_spec()->mutable_precision()->set_compute(compute);
    way->set_fits(true);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("BF16 PEAK"), std::string::npos) << out_;
  compute = v1::DTYPE_FP8;
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitOk) << err_;
  EXPECT_NE(out_.find("MFU (BF16 PEAK)"), std::string::npos) << out_;
  server_.Stop();  // Before `compute` is destroyed.
}

TEST_F(SearchCommandTest, ShowsWhySpecAsWrittenIsRejected) {
  server_.Stop();
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200", "--set",
                 "train.global_batch=6"}),
            kExitOk)
      << err_;
  const size_t refused = out_.find("\nthe spec as written is rejected:\n  train.global_batch: ");
  ASSERT_NE(refused, std::string::npos) << out_;
  EXPECT_NE(out_.find(" [global_batch_divisible]\n", refused), std::string::npos) << out_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--profile", "h200"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("is rejected"), std::string::npos) << out_;
}

// Regression: a coordinator that shut down returned a partial result, and the spec counted as rejected.
TEST_F(SearchCommandTest, IncompleteSearchDoesNotRejectSpec) {
  std::atomic<bool> complete{false};
  server_.on_search = [&](const auto&, v1::SearchPlansResponse* response) {
    response->mutable_search()->set_complete(complete);
    return grpc::Status::OK;
  };
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitTimeout);
  EXPECT_NE(err_.find("the search is incomplete"), std::string::npos) << err_;
  complete = true;
  EXPECT_EQ(Run({"plan", "-f", file_, "--search"}), kExitSpecRefused);
  server_.Stop();  // Before `complete` is destroyed.
}

// A clock that advances by 10 ms on each call.
class SlowClock : public Clock {
 public:
  absl::Time Now() const override { return absl::UnixEpoch() + ++looks_ * absl::Milliseconds(10); }
  absl::Time Wall() const override { return Now(); }
  int looks() const { return looks_; }

 private:
  mutable int looks_ = 0;
};

// Regression: `--timeout 1` took 2.3 s, because an offline search had no limit.
TEST_F(SearchCommandTest, TimeoutBoundsOfflineSearch) {
  const auto search = [this](const std::vector<std::string>& timeout, Clock* clock) {
    std::vector<std::string> words = {"plan", "-f", file_, "--offline", "--search", "--profile", "h200"};
    words.insert(words.end(), timeout.begin(), timeout.end());
    std::istringstream in;
    std::ostringstream out, err;
    Console console{in, out, err};
    console.interrupt = &interrupt_;
    console.clock = clock;
    EXPECT_EQ(RunFsdpctl(words, &console), kExitOk) << err.str();
    return out.str();
  };
  SlowClock clock;
  const std::string partial = search({"--timeout", "1"}, &clock);
  EXPECT_NE(partial.find("INCOMPLETE"), std::string::npos) << partial;
  EXPECT_GT(clock.looks(), 70) << "the share of ranking";
  EXPECT_LT(clock.looks(), 110);
  const std::string whole = search({}, &clock);
  EXPECT_EQ(whole.find("INCOMPLETE"), std::string::npos) << whole;
}

// Regression: an offline search suggested --offline.
TEST_F(SearchCommandTest, OfflineSearchTimeoutHasMatchingHint) {
  std::istringstream in;
  std::ostringstream out, err;
  Console console{in, out, err};
  console.interrupt = &interrupt_;
  SlowClock clock;
  console.clock = &clock;
  EXPECT_NE(
      RunFsdpctl({"plan", "-f", file_, "--offline", "--search", "--profile", "h200", "--timeout", "0.001"},
                 &console),
      kExitOk);
  const std::string words = out.str() + err.str();
  EXPECT_NE(words.find("; allow more time (--timeout), or hold fields"), std::string::npos) << words;
  EXPECT_EQ(words.find("fsdpctl --offline"), std::string::npos) << words;
}

// Returns an empty search result, and records the client's deadline.
class WaitNotingApi : public ScriptedApi {
 public:
  double seconds() const { return seconds_; }
  double connect_seconds() const { return connect_seconds_; }

 private:
  grpc::Status SearchPlans(grpc::ServerContext* context, const v1::SearchPlansRequest*,
                           v1::SearchPlansResponse*) override {
    seconds_ = absl::ToDoubleSeconds(absl::FromChrono(context->deadline()) - absl::Now());
    return grpc::Status::OK;
  }
  grpc::Status GetVersion(grpc::ServerContext* context, const v1::GetVersionRequest*,
                          v1::GetVersionResponse*) override {
    connect_seconds_ = absl::ToDoubleSeconds(absl::FromChrono(context->deadline()) - absl::Now());
    return grpc::Status::OK;
  }

  std::atomic<double> seconds_{0}, connect_seconds_{0};
};

TEST_F(SearchCommandTest, TimeoutIsSentToCoordinator) {
  WaitNotingApi api;
  api.Start();
  EXPECT_EQ(RunCommand({"plan", "-f", file_, "--search", "--server", api.address(), "--timeout", "7"}),
            kExitTimeout);
  EXPECT_LT(api.seconds(), 8);
  EXPECT_EQ(RunCommand({"plan", "-f", file_, "--search", "--server", api.address()}), kExitTimeout);
  EXPECT_GT(api.seconds(), 20);
  EXPECT_LT(api.seconds(), 41);
  // Regression: a search with a silent coordinator failed only after 40 s.
  EXPECT_GT(api.connect_seconds(), 0);
  EXPECT_LT(api.connect_seconds(), 11);
  api.Stop();
}

TEST_F(SearchCommandTest, RejectsInvalidFlags) {
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--hold", "train.steps"}), kExitUsage);
  EXPECT_NE(err_.find("--hold: 'train.steps' is not a searched field; hold parallel.pipeline, "),
            std::string::npos)
      << err_;
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--hold", "fsdp"}), kExitUsage);
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--write", "x"}), kExitUsage);
  EXPECT_EQ(Run({"plan", "-f", file_, "--offline", "--search", "--trace", "x"}), kExitUsage);
}

}  // namespace
}  // namespace fsdpd

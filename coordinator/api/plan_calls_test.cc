// PlanJob and SearchPlans over a real server and client.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <list>
#include <memory>
#include <thread>

#include "base/mutex.h"
#include "base/temp_dir.h"
#include "coordinator/serve/server.h"
#include "coordinator/testing/tiny_spec.h"
#include "fsdp/plan/prediction.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

class PlanCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ServerOptions options;
    options.listen = "127.0.0.1:0";
    options.state_dir = dir_.path();
    auto server = Server::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = std::move(*server);
    stub_ =
        v1::Coordinator::NewStub(grpc::CreateChannel(server_->address(), grpc::InsecureChannelCredentials()));
  }

  grpc::Status Search(const v1::SearchPlansRequest& request, v1::PlanSearch* search) {
    grpc::ClientContext context;
    v1::SearchPlansResponse response;
    const grpc::Status status = stub_->SearchPlans(&context, request, &response);
    *search = response.search();
    return status;
  }

  TempDir dir_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
};

TEST_F(PlanCallsTest, PlanJobReturnsProgramAndMemory) {
  grpc::ClientContext context;
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinySpec(1, 2);
  v1::PlanJobResponse response;
  ASSERT_TRUE(stub_->PlanJob(&context, request, &response).ok());
  EXPECT_EQ(response.plan().world_size(), 2);
  EXPECT_GT(response.plan().instructions_size(), 0);
  EXPECT_GT(response.plan().memory().peak_bytes(), 0);
  EXPECT_FALSE(response.plan().program_hash().empty());
  EXPECT_EQ(response.plan().prediction().profile().name(), "cpu");
  EXPECT_GT(response.plan().prediction().step_seconds(), 0);
  EXPECT_FALSE(response.plan().prediction().has_timeline());
}

// A plan for another device: its memory is the budget instead of the nodes' memory.
TEST_F(PlanCallsTest, PlanJobTakesProfileAndRejectsInvalidOne) {
  v1::PlanJobRequest request;
  *request.mutable_spec() = TinySpec(1, 2);
  request.set_timeline(true);
  *request.mutable_profile() = ToProto(*FindProfile("cpu"));
  request.mutable_profile()->set_memory_bytes(1e9);
  grpc::ClientContext context;
  v1::PlanJobResponse response;
  ASSERT_TRUE(stub_->PlanJob(&context, request, &response).ok());
  EXPECT_EQ(response.plan().resolved().resources().memory_budget_bytes(), 1'000'000'000);
  EXPECT_EQ(response.plan().prediction().timeline().spans_size(), response.plan().instructions_size());
  request.mutable_profile()->set_compute_slowdown(0);
  grpc::ClientContext again;
  const grpc::Status status = stub_->PlanJob(&again, request, &response);
  EXPECT_THAT(status.error_message(), ::testing::HasSubstr("profile.compute_slowdown"));
}

TEST_F(PlanCallsTest, SearchReturnsFastestConfigurations) {
  v1::SearchPlansRequest request;
  *request.mutable_spec() = TinySpec(1, 4);
  request.mutable_spec()->mutable_train()->set_global_batch(8);
  request.add_hold("parallel");
  v1::PlanSearch search;
  const grpc::Status status = Search(request, &search);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(search.complete());
  EXPECT_GT(search.seconds(), 0);
  EXPECT_EQ(search.found_size(), 5);
  EXPECT_EQ(search.profile().name(), "cpu");
  for (const v1::PlanSearch::Configuration& way : search.found()) {
    EXPECT_EQ(way.spec().train().global_batch(), 8);
    EXPECT_EQ(way.mesh().tensor() * way.mesh().context(), 1);
  }
}

TEST_F(PlanCallsTest, SearchFitsMemoryOfGivenProfile) {
  v1::SearchPlansRequest request;
  *request.mutable_spec() = TinySpec(1, 2);
  *request.mutable_profile() = ToProto(*FindProfile("cpu"));
  request.mutable_profile()->set_memory_bytes(1000);
  v1::PlanSearch search;
  ASSERT_TRUE(Search(request, &search).ok());
  EXPECT_EQ(search.found_size(), 0);
  EXPECT_EQ(search.budget_bytes(), 1000);
  EXPECT_TRUE(search.has_closest());
}

TEST_F(PlanCallsTest, SearchReportsDefaultMemoryWithoutNodes) {
  v1::SearchPlansRequest request;
  *request.mutable_spec() = TinySpec(1, 2);
  request.mutable_spec()->mutable_resources()->set_device(v1::DEVICE_CUDA);
  request.add_hold("parallel");
  v1::PlanSearch search;
  ASSERT_TRUE(Search(request, &search).ok());
  EXPECT_TRUE(search.budget_from_profile());
  EXPECT_GT(search.budget_bytes(), FindProfile("h200")->budget_bytes() / 2);
  v1::SearchPlansRequest with_profile = request;
  *with_profile.mutable_profile() = ToProto(*FindProfile("h100"));
  ASSERT_TRUE(Search(with_profile, &search).ok());
  EXPECT_FALSE(search.budget_from_profile());
  request.mutable_spec()->mutable_resources()->set_memory_budget_bytes(int64_t{1} << 30);
  ASSERT_TRUE(Search(request, &search).ok());
  EXPECT_FALSE(search.budget_from_profile());
}

TEST_F(PlanCallsTest, SearchRejectsInvalidSpecProfileAndHold) {
  v1::SearchPlansRequest good;
  *good.mutable_spec() = TinySpec(1, 2);
  v1::SearchPlansRequest no_model = good, no_profile = good, no_hold = good;
  no_model.mutable_spec()->clear_model();
  *no_profile.mutable_profile() = ToProto(*FindProfile("cpu"));
  no_profile.mutable_profile()->set_compute_slowdown(0);
  no_hold.add_hold("train.steps");
  for (const v1::SearchPlansRequest& request : {no_model, no_profile, no_hold}) {
    v1::PlanSearch search;
    EXPECT_EQ(Search(request, &search).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
}

// Some 20,000 configurations: 15120 ranks have enough divisors.
v1::SearchPlansRequest LongSearch() {
  v1::SearchPlansRequest request;
  *request.mutable_spec() = TinySpec(1890, 8);
  request.mutable_spec()->mutable_model()->set_preset("llama3-8b");
  request.mutable_spec()->mutable_train()->set_global_batch(15120 * 24);
  return request;
}

// A client that retries a search until no other search runs, and then searches until it is cancelled.
class Searcher {
 public:
  explicit Searcher(v1::Coordinator::Stub* stub) : stub_(stub), thread_([this] { Run(); }) {}
  ~Searcher() { Stop(); }

  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopped_ = true;
      for (grpc::ClientContext& context : contexts_) context.TryCancel();
    }
    if (thread_.joinable()) thread_.join();
  }
  bool ended() const { return ended_; }

 private:
  grpc::ClientContext* NewContext() {
    MutexLock lock(&mutex_);
    if (stopped_) return nullptr;
    return &contexts_.emplace_back();
  }

  void Run() {
    while (grpc::ClientContext* context = NewContext()) {
      v1::SearchPlansResponse response;
      const grpc::Status status = stub_->SearchPlans(context, LongSearch(), &response);
      if (status.error_code() != grpc::StatusCode::RESOURCE_EXHAUSTED) break;
    }
    ended_ = true;
  }

  v1::Coordinator::Stub* const stub_;
  Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::list<grpc::ClientContext> contexts_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> ended_{false};
  std::thread thread_;  // Last: it uses the other members.
};

TEST_F(PlanCallsTest, RunsOneSearchAtATimeUntilItsClientEnds) {
  Searcher searcher(stub_.get());
  v1::SearchPlansRequest request;
  *request.mutable_spec() = TinySpec(1, 2);
  v1::PlanSearch search;
  grpc::Status status = grpc::Status::OK;
  while (status.ok() && !searcher.ended()) status = Search(request, &search);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  grpc::ClientContext other;
  v1::GetVersionResponse version;
  EXPECT_TRUE(stub_->GetVersion(&other, {}, &version).ok());
  searcher.Stop();
  do {
    status = Search(request, &search);
  } while (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(search.complete());
}

}  // namespace
}  // namespace fsdpd

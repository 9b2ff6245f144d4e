// What one that stands by tells while etcd does not answer; a change of leaders is tests/integration's.
#include "coordinator/replica.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "coordinator/store/leadership.h"
#include "coordinator/testing/etcd_server.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(Replica, OneThatStandsByNamesEtcdThatIsSilentAndNoLeaderOfBefore) {
  EtcdServer etcd;
  ReplicaOptions options;
  options.server.listen = "127.0.0.1:0";
  options.etcd.members = {etcd.address()};
  options.etcd.attempt = options.etcd.patience = absl::Milliseconds(600);
  options.lease = absl::Seconds(2);
  const auto client = *EtcdClient::Make(options.etcd, absl::Now());
  Leadership::Options other{options.prefix, "leader.example:7777", absl::Minutes(5)};
  const auto leads = Leadership::TryTake(client.get(), other, [] {});
  ASSERT_TRUE(leads.ok() && *leads != nullptr) << leads.status();
  const auto replica = Replica::Start(options);
  ASSERT_TRUE(replica.ok()) << replica.status();
  std::atomic<bool> stops{false};
  std::thread runs([&] {
    (*replica)->Run([&stops](absl::Duration wait) {
      absl::SleepFor(wait);
      return stops.load();
    });
  });
  const auto stub = v1::Coordinator::NewStub(
      grpc::CreateChannel((*replica)->address(), grpc::InsecureChannelCredentials()));
  const auto refusal = [&] {
    grpc::ClientContext context;
    v1::ListNodesResponse answer;
    return std::string(stub->ListNodes(&context, {}, &answer).error_message());
  };
  const auto await = [&](const std::string& words) {
    const absl::Time until = absl::Now() + kPatience;
    std::string said;
    do said = refusal();
    while (!absl::StrContains(said, words) && absl::Now() < until);
    EXPECT_THAT(said, HasSubstr(words));
  };
  await("the one that leads is leader.example:7777");
  etcd.Pause();
  await("none leads, as far as it knows: etcd does not answer: etcd at " + etcd.address());
  v1::GetJobRequest request;
  request.set_id("job-k3x9q2");
  v1::GetJobResponse answer;
  grpc::ClientContext context;
  const grpc::Status read = stub->GetJob(&context, request, &answer);
  EXPECT_EQ(read.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(read.error_message(), HasSubstr("etcd does not answer"));
  etcd.Continue();
  await("the one that leads is leader.example:7777");
  stops = true;
  runs.join();
}

TEST(Replica, WhereTheStateLiesIsTheStoresPathOrFsdpd) {
  for (const auto& [store, prefix] : {std::pair("etcd://a:1", "/fsdpd/"), std::pair("etcd://a:1/", "/fsdpd/"),
                                      std::pair("etcd://a:1,b:2/one/two/", "/one/two/")}) {
    ReplicaOptions options;
    EXPECT_TRUE(ParseStore(store, &options).ok());
    EXPECT_EQ(options.prefix, prefix);
  }
}

}  // namespace
}  // namespace fsdpd

// Responses of a standby, also while etcd does not answer. tests/integration covers changes of the leader.
#include "coordinator/serve/replica.h"

#include <absl/strings/match.h>
#include <absl/time/clock.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/store/etcd_store.h"
#include "coordinator/store/leadership.h"
#include "coordinator/testing/etcd_server.h"
#include "proto/fsdpd/v1/coordinator.grpc.pb.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

TEST(Replica, StandbyReportsSilentEtcdWithoutOldLeader) {
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
  await("the leader is leader.example:7777");
  etcd.Pause();
  await("there is no leader: etcd does not answer: etcd at " + etcd.address());
  v1::GetJobRequest request;
  request.set_id("job-k3x9q2");
  v1::GetJobResponse answer;
  grpc::ClientContext context;
  const grpc::Status read = stub->GetJob(&context, request, &answer);
  EXPECT_EQ(read.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_THAT(read.error_message(), HasSubstr("etcd does not answer"));
  etcd.Continue();
  await("the leader is leader.example:7777");
  stops = true;
  runs.join();
}

v1::Event CordonOf(const std::string& node, absl::Time when) {
  v1::Event event;
  event.set_kind(v1::EVENT_KIND_CORDONED);
  event.set_node(node);
  event.set_unix_nanos(absl::ToUnixNanos(when));
  return event;
}

// Events that the leader has stored, with their sequence numbers, by the same calls.
TEST(Replica, StandbyListsStoredEvents) {
  EtcdServer etcd;
  ReplicaOptions options;
  options.server.listen = "127.0.0.1:0";
  options.etcd.members = {etcd.address()};
  const auto client = *EtcdClient::Make(options.etcd, absl::Now());
  Leadership::Options other{options.prefix, "leader.example:7777", absl::Minutes(5)};
  const auto leads = Leadership::TryTake(client.get(), other, [] {});
  ASSERT_TRUE(leads.ok() && *leads != nullptr) << leads.status();
  const auto store = EtcdStore::Open(client.get(), options.prefix, leads->get());
  ASSERT_TRUE(store.ok()) << store.status();
  const absl::Time now = absl::Now(), long_ago = now - absl::Hours(24 * 365);
  const auto happens = [&](const std::string& node, absl::Time when) {
    return (*store)->SetCordon(node, {}, {CordonOf(node, when)}).ok();
  };
  ASSERT_TRUE(happens("old-1", long_ago) && happens("old-2", long_ago));
  ASSERT_TRUE(happens("a", now) && happens("b", now) && happens("a", now));
  const int64_t first = (*store)->events().oldest();
  ASSERT_EQ((*store)->events().newest(), first + 2) << "those of a year ago are gone";

  auto replica = Replica::Start(options);
  ASSERT_TRUE(replica.ok()) << replica.status();
  const auto stub = v1::Coordinator::NewStub(
      grpc::CreateChannel((*replica)->address(), grpc::InsecureChannelCredentials()));
  const auto list = [&](const v1::ListEventsRequest& request, v1::ListEventsResponse* answer) {
    grpc::ClientContext context;
    return stub->ListEvents(&context, request, answer);
  };
  v1::ListEventsRequest request;
  request.set_page_size(1);
  request.set_node("a");
  std::vector<int64_t> told;
  do {
    v1::ListEventsResponse page;
    const grpc::Status listed = list(request, &page);
    ASSERT_TRUE(listed.ok()) << listed.error_message();
    for (const v1::Event& event : page.events()) told.push_back(event.sequence());
    request.set_page_token(page.next_page_token());
  } while (!request.page_token().empty());
  EXPECT_THAT(told, ElementsAre(first, first + 2));
  v1::ListEventsResponse none;
  request.set_after(first - 2);
  EXPECT_EQ(list(request, &none).error_code(), grpc::StatusCode::OUT_OF_RANGE)
      << "an error is not reported as an empty list";
  request.set_filter("kind = SUBMITTED");
  EXPECT_EQ(list(request, &none).error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  request.set_filter("");
  request.set_after(first + 2);
  EXPECT_TRUE(list(request, &none).ok() && none.events().empty());
  ASSERT_TRUE(happens("a", now));
  EXPECT_TRUE(list(request, &none).ok());
  ASSERT_EQ(none.events_size(), 1) << "new events are read on request";
  EXPECT_EQ(none.events(0).sequence(), first + 3);
}

}  // namespace
}  // namespace fsdpd

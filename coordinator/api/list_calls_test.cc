// Id prefixes, orders, page tokens and etags of list calls, tested with a whole coordinator in one process.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "coordinator/testing/served_case.h"
#include "coordinator/testing/tiny_spec.h"

namespace fsdpd {
namespace {

using grpc::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ListCallsTest : public ServedCase {
 protected:
  void SetUp() override {
    ServedCase::SetUp();
    if (HasFatalFailure()) return;
    for (int i = 0; i < 4; ++i) {
      grpc::ClientContext context;
      v1::SubmitJobRequest request;
      *request.mutable_spec() = TinySpec();
      request.mutable_spec()->set_priority(i);
      v1::SubmitJobResponse response;
      const grpc::Status status = stub_->SubmitJob(&context, request, &response);
      ASSERT_TRUE(status.ok()) << status.error_message();
      ids_.push_back(response.job().id());
    }
  }

  grpc::Status List(const v1::ListJobsRequest& request, v1::ListJobsResponse* response) {
    grpc::ClientContext context;
    return stub_->ListJobs(&context, request, response);
  }
  // Returns all pages, with two entries each.
  std::vector<int64_t> Priorities(const std::string& order_by, v1::ListJobsRequest request = {}) {
    request.set_page_size(2);
    request.set_order_by(order_by);
    std::vector<int64_t> priorities;
    do {
      v1::ListJobsResponse response;
      const grpc::Status status = List(request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      for (const v1::Job& job : response.jobs()) priorities.push_back(job.spec().priority());
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return priorities;
  }
  std::vector<v1::Event> Events(v1::ListEventsRequest request) {
    request.set_page_size(2);
    std::vector<v1::Event> events;
    do {
      grpc::ClientContext context;
      v1::ListEventsResponse response;
      const grpc::Status status = stub_->ListEvents(&context, request, &response);
      EXPECT_TRUE(status.ok()) << status.error_message();
      events.insert(events.end(), response.events().begin(), response.events().end());
      request.set_page_token(response.next_page_token());
    } while (!request.page_token().empty());
    return events;
  }
  grpc::Status Cancel(const std::string& id, const std::string& etag) {
    grpc::ClientContext context;
    v1::CancelJobRequest request;
    request.set_id(id);
    request.set_etag(etag);
    v1::CancelJobResponse response;
    return stub_->CancelJob(&context, request, &response);
  }

  std::vector<std::string> ids_;
};

TEST_F(ListCallsTest, OrdersAndSelectsJobsAcrossPages) {
  EXPECT_THAT(Priorities(""), ElementsAre(3, 2, 1, 0));
  EXPECT_THAT(Priorities("create_time"), ElementsAre(0, 1, 2, 3));
  v1::ListJobsRequest request;
  request.set_id_prefix(ids_[2]);
  EXPECT_THAT(Priorities("", request), ElementsAre(2));
  request.set_id_prefix(ids_[2].substr(0, 4));
  EXPECT_THAT(Priorities("", request), SizeIs(4));
  ASSERT_TRUE(Cancel(ids_[1], "").ok());
  EXPECT_EQ(Priorities("end_time desc").front(), 1);
  EXPECT_EQ(Priorities("end_time").back(), 1);
  EXPECT_THAT(Priorities("end_time"), SizeIs(4));
}

TEST_F(ListCallsTest, RejectsFilterAndInvalidOrderAndToken) {
  v1::ListJobsRequest request;
  v1::ListJobsResponse response;
  request.set_filter("state = RUNNING");
  EXPECT_EQ(List(request, &response).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(List(request, &response).error_message(),
              HasSubstr("filter: is not supported after release 0.1"));
  request.set_filter("id : \"" + ids_[2].substr(0, 4) + "\"");  // Of fsdpctl 0.1.
  EXPECT_TRUE(List(request, &response).ok());
  EXPECT_GE(response.jobs_size(), 1);
  for (const v1::Job& job : response.jobs()) EXPECT_EQ(job.id().substr(0, 4), ids_[2].substr(0, 4));
  request.set_filter("");
  request.set_order_by("colour");
  EXPECT_THAT(
      List(request, &response).error_message(),
      HasSubstr("order_by: at offset 0: unknown field 'colour'; the fields are create_time, end_time"));
  request.set_order_by("create_time");
  request.set_page_size(1);
  ASSERT_TRUE(List(request, &response).ok());
  request.set_page_token(response.next_page_token());
  request.set_order_by("end_time");
  EXPECT_THAT(List(request, &response).error_message(),
              HasSubstr("page_token: was issued for another order_by"));
}

TEST_F(ListCallsTest, ListsEventsNewestFirstAcrossPages) {
  v1::ListEventsRequest request;
  const auto submitted = [&] {
    std::vector<std::string> jobs;
    for (const v1::Event& event : Events(request)) {
      if (event.kind() == v1::EVENT_KIND_SUBMITTED) jobs.push_back(event.job());
    }
    return jobs;
  };
  EXPECT_EQ(submitted(), ids_);
  request.set_order_by("sequence desc");
  EXPECT_EQ(submitted(), std::vector<std::string>(ids_.rbegin(), ids_.rend()));
  const std::vector<v1::Event> all = Events(request);
  request.set_after(all[1].sequence());
  EXPECT_EQ(Events(request).back().sequence(), all[0].sequence()) << "as far back as the cursor";
}

TEST_F(ListCallsTest, RejectsCursorBeyondNewestEvent) {
  v1::ListEventsRequest list;
  const int64_t newest = Events(list).back().sequence();
  list.set_after(newest);
  Events(list);  // Neither at the newest event nor after it is that an error.
  constexpr int64_t kNone = 1'000'000'000'000;
  const std::string words = absl::StrCat("after: there is no event ", kNone, " yet; the newest is ");
  list.set_after(kNone);
  grpc::ClientContext lists, watches;
  v1::ListEventsResponse page;
  EXPECT_THAT(stub_->ListEvents(&lists, list, &page).error_message(), HasSubstr(words));
  v1::WatchEventsRequest watch;
  watch.set_after(kNone);
  v1::WatchEventsResponse update;
  const auto reader = stub_->WatchEvents(&watches, watch);
  EXPECT_FALSE(reader->Read(&update));
  const grpc::Status refused = reader->Finish();
  EXPECT_EQ(refused.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr(words));
}

TEST_F(ListCallsTest, RejectsCancelWithOutdatedEtag) {
  v1::ListJobsResponse response;
  do {  // Until the reconciler has set its waiting code, and then its reason.
    ASSERT_TRUE(List({}, &response).ok());
  } while (response.jobs(0).waiting().code() == v1::Job::Waiting::CODE_ADMITTED ||
           response.jobs(0).reason() == "admitted; waits to be placed");
  const v1::Job& seen = response.jobs(0);
  ASSERT_FALSE(seen.etag().empty());
  EXPECT_EQ(Cancel(seen.id(), "another").error_code(), StatusCode::ABORTED);
  EXPECT_THAT(Cancel(seen.id(), "another").error_message(), HasSubstr("it is queued, in revision"));
  EXPECT_TRUE(Cancel(seen.id(), seen.etag()).ok());
  EXPECT_EQ(Cancel(seen.id(), seen.etag()).error_code(), StatusCode::ABORTED);
}

}  // namespace
}  // namespace fsdpd

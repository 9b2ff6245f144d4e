#include "coordinator/request/list_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::Job Running() {
  v1::Job job;
  job.set_id("llama-abc");
  job.mutable_spec()->set_name("llama");
  job.mutable_spec()->set_priority(5);
  job.set_state(v1::JOB_STATE_RUNNING);
  job.set_project("red");
  job.set_submitter("ada");
  job.set_attempt(2);
  job.set_preemptible(true);
  job.mutable_failure()->set_cause(v1::FAILURE_CAUSE_NODE);
  job.mutable_last_step()->set_step(70);
  job.set_create_unix_nanos(1'800'000'000'000'000'000);
  job.set_start_unix_nanos(1);
  job.set_end_unix_nanos(2);
  for (const char* node : {"n-1", "n-2"}) job.add_placements()->set_node(node);
  v1::Label* label = job.add_labels();
  label->set_key("example.com/team");
  label->set_value("a");
  return job;
}

bool OfJob(const std::string& filter, const v1::Job& job) {
  const auto parsed = JobFilter(filter);
  EXPECT_TRUE(parsed.ok()) << filter << ": " << parsed.status();
  return parsed.ok() && (*parsed)(job);
}

TEST(ListFields, ReadsEachJobField) {
  const v1::Job job = Running();
  for (const char* filter :
       {"id = llama-abc", "name = llama", "state = RUNNING", "cause = NODE", "project = red",
        "submitter = ada", "priority = 5", "preemptible = true", "attempt = 2", "step = 70", "node = n-2",
        "labels.example.com/team = a", "create_time > 2027-01-01", "start_time < 1970-01-02",
        "end_time < 1970-01-02", "after != x", "reason = \"\""}) {
    EXPECT_TRUE(OfJob(filter, job)) << filter;
    EXPECT_FALSE(OfJob(std::string("NOT ") + filter, job)) << filter;
  }
  EXPECT_EQ(JobFields().size(), 17u) << "each has a line above";
}

TEST(ListFields, ReadsEachNodeField) {
  v1::Node node;
  node.set_name("n");
  node.set_connected(true);
  node.set_device(v1::DEVICE_CUDA);
  node.set_slots(8);
  node.set_free_slots(3);
  node.set_version("1.2");
  node.set_memory_bytes_per_slot(100);
  node.set_host_memory_bytes(200);
  node.set_last_seen_unix_nanos(1);
  node.mutable_cordon()->set_reason("fan");
  node.set_nvlink_domain("rack-7");
  node.add_labels()->set_key("gpu");
  node.mutable_labels(0)->set_value("h200");
  for (const char* filter :
       {"name = n", "connected = true", "not_ready = false", "left = false", "cordoned = true",
        "draining = false", "reason = fan", "device = CUDA", "slots = 8", "free_slots = 3",
        "memory_bytes_per_slot = 100", "host_memory_bytes = 200", "version : 1.",
        "last_seen_time < 1970-01-02", "nvlink_domain = rack-7", "labels.gpu = h200"}) {
    const auto parsed = NodeFilter(filter);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE((*parsed)(node)) << filter;
    EXPECT_FALSE((*NodeFilter(std::string("NOT ") + filter))(node)) << filter;
  }
  EXPECT_EQ(NodeFields().size(), 16u) << "each has a line above";
}

TEST(ListFields, ReadsEachEventField) {
  v1::Event event;
  event.set_kind(v1::EVENT_KIND_ATTEMPT_FAILED);
  event.set_job("j");
  event.set_node("n");
  event.set_attempt(2);
  event.set_state(v1::JOB_STATE_STOPPING);
  event.set_cause(v1::FAILURE_CAUSE_DATA);
  event.set_unix_nanos(1);
  event.set_message("rank 0 failed");
  for (const char* filter :
       {"kind = ATTEMPT_FAILED", "kind = attempt-failed", "job = j", "node = n", "attempt = 2",
        "state = STOPPING", "cause = DATA", "time < 1970-01-02", "message : failed"}) {
    const auto parsed = EventFilter(filter);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_TRUE((*parsed)(event)) << filter;
    EXPECT_FALSE((*EventFilter(std::string("NOT ") + filter))(event)) << filter;
  }
  EXPECT_EQ(EventFields().size(), 8u) << "each has a line above";
}

TEST(ListFields, EmptyFilterIsNull) {
  EXPECT_EQ(*JobFilter(""), nullptr);
  EXPECT_THAT(JobFilter("state = SLEEPING").status().message(), HasSubstr("not one of UNSPECIFIED, QUEUED"));
}

std::vector<std::string> NamesBy(const std::string& order_by) {
  std::vector<v1::Node> nodes(3);
  const std::tuple<const char*, int, int> of[] = {{"b", 8, 1}, {"a", 4, 1}, {"c", 2, 2}};
  for (size_t i = 0; i < 3; ++i) {
    nodes[i].set_name(std::get<0>(of[i]));
    nodes[i].set_slots(std::get<1>(of[i]));
    nodes[i].set_free_slots(std::get<2>(of[i]));
  }
  EXPECT_TRUE(OrderNodes(order_by, &nodes).ok());
  std::vector<std::string> names;
  for (const v1::Node& node : nodes) names.push_back(node.name());
  return names;
}

TEST(ListFields, OrdersNodesByFieldThenName) {
  EXPECT_THAT(NamesBy(""), ElementsAre("a", "b", "c"));
  EXPECT_THAT(NamesBy("name desc"), ElementsAre("c", "b", "a"));
  EXPECT_THAT(NamesBy("slots"), ElementsAre("c", "a", "b"));
  EXPECT_THAT(NamesBy("free_slots desc"), ElementsAre("c", "a", "b"));
  std::vector<v1::Node> none;
  EXPECT_THAT(OrderNodes("colour", &none).message(),
              HasSubstr("the fields are name, slots, free_slots, last_seen_time"));
}

}  // namespace
}  // namespace fsdpd

#include "client/text/json_path.h"

#include <gtest/gtest.h>

#include "proto/fsdpd/v1/coordinator.pb.h"

namespace fsdpd {
namespace {

v1::ListJobsResponse Jobs() {
  v1::ListJobsResponse list;
  for (const char* id : {"a-1", "b-2", "c-3"}) {
    v1::Job* job = list.add_jobs();
    job->set_id(id);
    job->set_state(id[0] == 'b' ? v1::JOB_STATE_QUEUED : v1::JOB_STATE_RUNNING);
    job->set_attempt(list.jobs_size());
  }
  list.mutable_jobs(0)->mutable_last_step()->set_loss(0.25);
  list.mutable_jobs(0)->add_warnings("one");
  list.mutable_jobs(0)->add_warnings("two");
  return list;
}

std::string Of(const char* text) {
  const absl::StatusOr<JsonPath> path = JsonPath::Parse(text);
  if (!path.ok()) return std::string(path.status().message());
  const absl::StatusOr<std::string> out = path->Render(Jobs());
  return out.ok() ? *out : std::string(out.status().message());
}

TEST(JsonPath, SelectsFieldsElementsAndRanges) {
  EXPECT_EQ(Of("{.jobs[*].id}"), "a-1 b-2 c-3");
  EXPECT_EQ(Of("{$.jobs[0].id}/{.jobs[-1].id}"), "a-1/c-3");
  EXPECT_EQ(Of("{.jobs[1:].id}"), "b-2 c-3");
  EXPECT_EQ(Of("{.jobs[0:2]['id']}"), "a-1 b-2");
  EXPECT_EQ(Of("{.jobs[0].last_step.loss} {.jobs[0].lastStep.loss}"), "0.25 0.25");
  EXPECT_EQ(Of("{.jobs[0].state} {.jobs[0].plan_provisional}"), "running false");
  EXPECT_EQ(Of("{.jobs[0].warnings}"), "[\"one\", \"two\"]");
  EXPECT_EQ(Of("{.jobs[0].warnings[1]}"), "two");
}

TEST(JsonPath, UnsetFieldIsEmpty) {
  EXPECT_EQ(Of("<{.jobs[1].last_step.loss}>"), "<>");
  EXPECT_EQ(Of("<{.jobs[7].id}{.jobs[-7].id}>"), "<>");
}

TEST(JsonPath, EvaluatesLoopsAndText) {
  EXPECT_EQ(Of(R"({range .jobs[*]}{.id}{"\t"}{.attempt}{"\n"}{end}.)"), "a-1\t1\nb-2\t2\nc-3\t3\n.");
}

TEST(JsonPath, EvaluatesFilters) {
  EXPECT_EQ(Of(R"({.jobs[?(@.state=="running")].id})"), "a-1 c-3");
  EXPECT_EQ(Of(R"({.jobs[?(@.state != 'running')].id})"), "b-2");
  EXPECT_EQ(Of("{.jobs[?(@.attempt>=2)].id}"), "b-2 c-3");
  EXPECT_EQ(Of("{.jobs[?(@.last_step)].id}"), "a-1");
  EXPECT_EQ(Of("{.jobs[?(@.plan_provisional==false)].attempt}"), "1 2 3");
}

TEST(JsonPath, SuggestsSimilarField) {
  EXPECT_EQ(Of("{.jobs[*].sate}"), "jsonpath: unknown field 'sate' of Job; did you mean state?");
  EXPECT_EQ(Of("{.jobs.id}"), "jsonpath: jobs is a list; add [*] or [0] before .id");
  EXPECT_EQ(Of("{.jobs[0].id.x}"), "jsonpath: id is a scalar without a field .x");
  EXPECT_EQ(Of("{.jobs[0].id[0]}"), "jsonpath: id is not a list; remove the brackets after it");
}

TEST(JsonPath, RejectsSyntaxErrors) {
  for (const char* bad : {"{.jobs", "{.jobs[}", "{.jobs[x]}", "{end}", "{range .jobs[*]}", "{..id}", "{.a b}",
                          "{.jobs[?(state)]}", "{.jobs[?(@.state==running)]}", "{\"x}", "{.a.}"})
    EXPECT_FALSE(JsonPath::Parse(bad).ok()) << bad;
}

TEST(JsonPath, IndexOutOfRangeIsEmpty) {
  EXPECT_EQ(Of("<{.jobs[9223372036854775807].id}{.jobs[-9223372036854775808].id}>"), "<>");
}

TEST(JsonPath, BoundsNestingDepth) {
  std::string text = "{.jobs";
  for (int i = 0; i < 100'000; ++i) text += "[?(@.jobs";
  EXPECT_NE(Of(text.c_str()).find("more than 8 nested ranges and filters"), std::string::npos);
  EXPECT_EQ(Of("{.jobs[?(@.warnings[?(@=='two')])].id}"), "a-1");
}

TEST(JsonPath, ParsesPathWithoutBraces) {
  for (const char* text : {"{.jobs[0].id}", ".jobs[0].id", "jobs[0].id"}) {
    const absl::StatusOr<JsonPath> path = JsonPath::ParsePath(text);
    ASSERT_TRUE(path.ok()) << text << path.status();
    EXPECT_EQ(*path->Render(Jobs()), "a-1");
  }
  EXPECT_FALSE(JsonPath::ParsePath("{.id").ok());
  EXPECT_FALSE(JsonPath::ParsePath(".id}").ok());
}

}  // namespace
}  // namespace fsdpd

#include "coordinator/agents/agent_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

std::string WhyNot(const v1::AgentMessage& message) { return std::string(CheckNumbers(message).message()); }

// A valid report, with negative, infinite or huge values where they are allowed.
v1::AgentMessage Step() {
  v1::AgentMessage message;
  message.set_stream_generation(int64_t{7} << 32);
  message.set_sent_unix_nanos(1'800'000'000'000'000'000);
  message.mutable_rank()->set_attempt(3);
  message.mutable_rank()->set_rank(15);
  v1::StepReport* step = message.mutable_rank()->mutable_step();
  step->set_step(1'000'000'000);
  step->set_loss(std::nan(""));
  step->set_grad_norm(std::numeric_limits<double>::infinity());
  step->set_learning_rate(-1);
  step->set_step_seconds(0.25);
  step->set_exposed_seconds(-1e-12);
  step->set_tokens(1 << 24);
  step->mutable_memory()->set_peak_bytes(int64_t{141} << 30);
  step->mutable_bad_step()->set_end_sample(int64_t{1} << 60);
  step->add_ops()->set_bytes(int64_t{1} << 50);
  return message;
}

TEST(AgentNumbers, AcceptsValidReports) {
  EXPECT_TRUE(CheckNumbers(v1::AgentMessage()).ok());
  EXPECT_TRUE(CheckNumbers(Step()).ok()) << WhyNot(Step());
  v1::AgentMessage exit;
  exit.mutable_rank()->mutable_exit()->set_exit_code(-1);
  exit.mutable_rank()->mutable_exit()->set_signal(64);
  EXPECT_TRUE(CheckNumbers(exit).ok()) << WhyNot(exit);
}

TEST(AgentNumbers, NamesTheFieldAndItsValue) {
  v1::AgentMessage message = Step();
  message.mutable_rank()->mutable_step()->set_step(INT64_MAX);
  EXPECT_EQ(WhyNot(message), "rank.step.step: out of range (got 9223372036854775807, want 0..1e+09)");
  message = Step();
  message.mutable_rank()->mutable_step()->add_ops()->set_seconds(std::nan(""));
  EXPECT_THAT(WhyNot(message), HasSubstr("rank.step.ops[1].seconds: out of range (got nan, "));
}

TEST(AgentNumbers, AppliesBoundsByKindOfNumber) {
  const auto refused = [](const auto& set) {
    v1::AgentMessage message;
    set(&message);
    return WhyNot(message);
  };
  EXPECT_THAT(refused([](auto* m) { m->set_sent_unix_nanos(-1); }),
              HasSubstr("sent_unix_nanos: out of range (got -1"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->set_rank(-1); }),
              HasSubstr("rank.rank: out of range (got -1"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->set_attempt(1'000'001); }), HasSubstr("rank.attempt"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->mutable_exit()->set_last_step(-5); }),
              HasSubstr("rank.exit.last_step: out of range (got -5"));
  EXPECT_THAT(
      refused([](auto* m) { m->mutable_rank()->mutable_exit()->mutable_last_report()->set_tokens(-5); }),
      HasSubstr("rank.exit.last_report.tokens: out of range (got -5"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->mutable_exit()->set_signal(-9); }),
              HasSubstr("signal: out of range (got -9"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->mutable_saved()->set_bytes(INT64_MIN); }),
              HasSubstr("rank.saved.bytes: out of range (got -9223372036854775808"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->mutable_saved()->set_seconds(1e300); }),
              HasSubstr("rank.saved.seconds: out of range (got 1e+300"));
  EXPECT_THAT(
      refused([](auto* m) { m->mutable_rank()->mutable_no_progress()->set_no_progress_ms(INT64_MAX); }),
      HasSubstr("rank.no_progress.no_progress_ms"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_rank()->mutable_ready()->mutable_restored()->set_step(-1); }),
              HasSubstr("rank.ready.restored.step: out of range (got -1"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_register_()->add_hosted()->add_ranks(1 << 20); }),
              HasSubstr("register.hosted[0].ranks[0]: out of range (got 1048576"));
  EXPECT_THAT(
      refused([](auto* m) { m->mutable_heartbeat()->add_compute_times()->add_ranks()->set_steps(-1); }),
      HasSubstr("heartbeat.compute_times[0].ranks[0].steps: out of range (got -1"));
  EXPECT_THAT(
      refused([](auto* m) {
        m->mutable_preflight()->add_devices()->set_matmul_flops(std::numeric_limits<double>::infinity());
      }),
      HasSubstr("preflight.devices[0].matmul_flops: out of range (got inf"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_logs()->add_lines()->set_step(-1); }),
              HasSubstr("logs.lines[0].step: out of range (got -1"));
  EXPECT_THAT(refused([](auto* m) { m->mutable_trace_result()->mutable_trace()->set_step(INT64_MIN); }),
              HasSubstr("trace_result.trace.step"));
}

}  // namespace
}  // namespace fsdpd

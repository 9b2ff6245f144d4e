#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

v1::JobSpec GoodJob() {
  v1::JobSpec job;
  job.set_name("tiny-llama");
  job.mutable_model()->set_preset("tiny");
  job.mutable_data()->mutable_synthetic();
  job.mutable_data()->set_sequence_length(128);
  job.mutable_train()->set_steps(200);
  job.mutable_precision()->set_compute(v1::DTYPE_BF16);
  return job;
}

v1::OnNonfinite* Nonfinite(v1::JobSpec* job, v1::StepAction action) {
  v1::OnNonfinite* on = job->mutable_train()->mutable_on_nonfinite();
  on->set_action(action);
  return on;
}

v1::OnSpike* Spike(v1::JobSpec* job, v1::StepAction action) {
  v1::OnSpike* on = job->mutable_train()->mutable_on_spike();
  on->set_action(action);
  return on;
}

void Saves(v1::JobSpec* job, int64_t every_steps) {
  job->mutable_checkpoint()->set_dir("/runs/1");
  job->mutable_checkpoint()->set_every_steps(every_steps);
}

struct BadCase {
  const char* rule;
  const char* field;  // Below train.
  std::function<void(v1::JobSpec*)> spoil;
};

std::vector<BadCase> BadCases() {
  using J = v1::JobSpec;
  constexpr v1::StepAction kStop = v1::STEP_ACTION_STOP, kSkip = v1::STEP_ACTION_SKIP,
                           kRewind = v1::STEP_ACTION_REWIND;
  return {
      {"bad_step_nonfinite_max", "on_nonfinite.max", [](J* j) { Nonfinite(j, kSkip)->set_max(0); }},
      {"bad_step_nonfinite_max", "on_nonfinite.max", [](J* j) { Nonfinite(j, kSkip)->set_max(-1); }},
      {"bad_step_nonfinite_max", "on_nonfinite.max", [](J* j) { Nonfinite(j, kStop)->set_max(1001); }},
      {"bad_step_nonfinite_max_unused", "on_nonfinite.max", [](J* j) { Nonfinite(j, kStop)->set_max(3); }},
      {"bad_step_nonfinite_max_unused", "on_nonfinite.max",
       [](J* j) { j->mutable_train()->mutable_on_nonfinite()->set_max(3); }},
      {"bad_step_skip_with_loss_scale", "on_nonfinite.action",
       [](J* j) {
         Nonfinite(j, kSkip);
         j->mutable_precision()->set_compute(v1::DTYPE_FP16);
       }},
      {"bad_step_nonfinite_rewind", "on_nonfinite.action", [](J* j) { Nonfinite(j, kRewind); }},
      {"bad_step_nonfinite_rewind", "on_nonfinite.action",
       [](J* j) {
         Nonfinite(j, kRewind);
         j->mutable_checkpoint()->set_dir("/runs/1");  // A final checkpoint cannot be a rewind target.
       }},
      {"bad_step_spike_action", "on_spike.action", [](J* j) { j->mutable_train()->mutable_on_spike(); }},
      {"bad_step_spike_max", "on_spike.max", [](J* j) { Spike(j, kSkip)->set_max(0); }},
      {"bad_step_spike_max", "on_spike.max", [](J* j) { Spike(j, kSkip)->set_max(1001); }},
      {"bad_step_spike_max_unused", "on_spike.max", [](J* j) { Spike(j, kStop)->set_max(3); }},
      {"bad_step_spike_factor", "on_spike.grad_norm_factor",
       [](J* j) { Spike(j, kSkip)->set_grad_norm_factor(1); }},
      {"bad_step_spike_factor", "on_spike.grad_norm_factor",
       [](J* j) { Spike(j, kSkip)->set_grad_norm_factor(0); }},
      {"bad_step_spike_factor", "on_spike.grad_norm_factor",
       [](J* j) { Spike(j, kSkip)->set_grad_norm_factor(std::numeric_limits<double>::quiet_NaN()); }},
      {"bad_step_spike_factor", "on_spike.grad_norm_factor",
       [](J* j) { Spike(j, kSkip)->set_grad_norm_factor(std::numeric_limits<double>::infinity()); }},
      {"bad_step_spike_window", "on_spike.window", [](J* j) { Spike(j, kSkip)->set_window(1); }},
      {"bad_step_spike_window", "on_spike.window", [](J* j) { Spike(j, kSkip)->set_window(1025); }},
      {"bad_step_spike_rewind", "on_spike.action", [](J* j) { Spike(j, kRewind); }},
  };
}

std::string Ids(const Violations& found) {
  std::string text;
  for (const Violation& v : found) text += v.rule + " at " + v.field + ": " + v.reason + "\n";
  return text;
}

TEST(BadStepRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : BadCases()) {
    v1::JobSpec job = GoodJob();
    bad.spoil(&job);
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << "for " << bad.rule << ":\n" << Ids(found);
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, std::string("train.") + bad.field) << bad.rule;
    EXPECT_GT(found[0].reason.size(), 15u) << bad.rule;
    EXPECT_GT(found[0].fix.size(), 10u) << bad.rule;
    EXPECT_EQ(found[0].level == ViolationLevel::kAdjust, !found[0].after.empty()) << bad.rule;
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id.rfind("bad_step_", 0) != 0) continue;
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id << " has no test case";
    EXPECT_GT(rule.text.size(), 10u) << rule.id;
  }
}

TEST(BadStepRules, AcceptsValidSpecs) {
  for (const v1::StepAction action : {v1::STEP_ACTION_STOP, v1::STEP_ACTION_SKIP, v1::STEP_ACTION_REWIND}) {
    v1::JobSpec job = GoodJob();
    Nonfinite(&job, action);
    Spike(&job, action);
    Saves(&job, 50);
    EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
    if (action == v1::STEP_ACTION_STOP) continue;
    for (const int64_t bound : {1, 1000}) {
      job.mutable_train()->mutable_on_nonfinite()->set_max(bound);
      job.mutable_train()->mutable_on_spike()->set_max(bound);
      EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
    }
  }
  v1::JobSpec by_the_clock = GoodJob();
  Nonfinite(&by_the_clock, v1::STEP_ACTION_REWIND);
  Spike(&by_the_clock, v1::STEP_ACTION_REWIND);
  by_the_clock.mutable_checkpoint()->set_dir("/runs/1");
  by_the_clock.mutable_checkpoint()->set_every_minutes(30);
  EXPECT_TRUE(CheckJob(by_the_clock).empty()) << Ids(CheckJob(by_the_clock));
  v1::JobSpec job = GoodJob();
  Spike(&job, v1::STEP_ACTION_SKIP)->set_window(2);
  job.mutable_train()->mutable_on_spike()->set_grad_norm_factor(1.5);
  job.mutable_precision()->set_compute(v1::DTYPE_FP16);  // Loss scaling does not handle spikes.
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  job.mutable_train()->mutable_on_spike()->set_window(1024);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
}

// An invalid or unparsed interval does not make a rewind invalid.
TEST(BadStepRules, IgnoresRewindIfCheckpointsAreUnknown) {
  v1::JobSpec job = GoodJob();
  Nonfinite(&job, v1::STEP_ACTION_REWIND);
  Saves(&job, -50);
  ASSERT_EQ(CheckJob(job).size(), 1u) << Ids(CheckJob(job));
  EXPECT_EQ(CheckJob(job)[0].rule, "checkpoint_every_not_negative");
  job.mutable_checkpoint()->clear_every_steps();
  EXPECT_TRUE(CheckJob(job, {"checkpoint.every_steps"}).empty());
  EXPECT_TRUE(CheckJob(job, {"checkpoint.every_minutes"}).empty());
}

}  // namespace
}  // namespace fsdpd

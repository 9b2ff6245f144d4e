#include <gtest/gtest.h>

#include <functional>
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
  job.mutable_resources()->set_device(v1::DEVICE_CPU);
  return job;
}

struct BadCase {
  const char* rule;
  const char* field;  // Below checkpoint.
  std::function<void(v1::Checkpoint*)> write;
};

v1::Checkpoint* Saving(v1::Checkpoint* checkpoint) {
  checkpoint->set_dir("/runs/1");
  checkpoint->set_every_steps(50);
  return checkpoint;
}

std::vector<BadCase> BadCases() {
  using C = v1::Checkpoint;
  return {
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir("runs/1"); }},
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir("/runs/../1"); }},
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir("/runs/1/.."); }},
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir(std::string("/runs\0/1", 8)); }},
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir("/runs\n/1"); }},
      {"checkpoint_dir_path", "dir", [](C* c) { c->set_dir("/" + std::string(3840, 'x')); }},
      {"checkpoint_load_path", "load", [](C* c) { c->set_load("iter_0000010"); }},
      {"checkpoint_load_path", "load", [](C* c) { c->set_load("/runs/1/../2"); }},
      {"checkpoint_load_path", "load", [](C* c) { c->set_load("/" + std::string(3840, 'x')); }},
      {"checkpoint_every_not_negative", "every_steps", [](C* c) { Saving(c)->set_every_steps(-1); }},
      {"checkpoint_every_not_negative", "every_steps",
       [](C* c) {
         Saving(c)->set_every_steps(-1);
         c->set_on_end(false);
       }},
      {"checkpoint_every_without_dir", "every_steps", [](C* c) { c->set_every_steps(50); }},
      {"checkpoint_minutes_not_negative", "every_minutes", [](C* c) { Saving(c)->set_every_minutes(-1); }},
      {"checkpoint_minutes_not_negative", "every_minutes",
       [](C* c) {
         c->set_dir("/runs/1");
         c->set_every_minutes(-1);
         c->set_on_end(false);
       }},
      {"checkpoint_minutes_without_dir", "every_minutes", [](C* c) { c->set_every_minutes(30); }},
      {"checkpoint_on_end_without_dir", "on_end", [](C* c) { c->set_on_end(true); }},
      {"checkpoint_never_saved", "dir",
       [](C* c) {
         c->set_dir("/runs/1");
         c->set_on_end(false);
       }},
      {"checkpoint_never_saved", "dir",
       [](C* c) {
         Saving(c)->set_every_steps(201);
         c->set_on_end(false);
       }},
      {"checkpoint_every_above_steps", "every_steps", [](C* c) { Saving(c)->set_every_steps(201); }},
      {"checkpoint_keep_last_positive", "keep_last", [](C* c) { Saving(c)->set_keep_last(-1); }},
      {"checkpoint_keep_last_positive", "keep_last", [](C* c) { c->set_keep_last(0); }},
      {"checkpoint_keep_last_without_dir", "keep_last", [](C* c) { c->set_keep_last(3); }},
      {"checkpoint_keep_every_not_negative", "keep_every", [](C* c) { Saving(c)->set_keep_every(-50); }},
      {"checkpoint_keep_every_without_dir", "keep_every", [](C* c) { c->set_keep_every(50); }},
      {"checkpoint_keep_every_divides", "keep_every", [](C* c) { Saving(c)->set_keep_every(75); }},
      {"checkpoint_keep_every_divides", "keep_every",
       [](C* c) {
         c->set_dir("/runs/1");
         c->set_keep_every(50);
       }},
      {"checkpoint_keep_every_divides", "keep_every",
       [](C* c) {
         c->set_dir("/runs/1");
         c->set_every_minutes(30);
         c->set_keep_every(50);
       }},
      {"checkpoint_load_optimizer_without_load", "load_optimizer",
       [](C* c) { c->set_load_optimizer(false); }},
      {"checkpoint_load_optimizer_without_load", "load_optimizer", [](C* c) { c->set_load_optimizer(true); }},
      {"checkpoint_export_known", "export", [](C* c) { Saving(c)->set_export_("gguf"); }},
      {"checkpoint_export_of_the_end", "export", [](C* c) { c->set_export_("hf"); }},
      {"checkpoint_export_of_the_end", "export",
       [](C* c) {
         Saving(c)->set_export_("hf");
         c->set_on_end(false);
       }},
      {"checkpoint_format_known", "format", [](C* c) { c->set_format("torch_dist"); }},
      {"checkpoint_format_known", "format", [](C* c) { c->set_format("pickle"); }},
  };
}

std::string Ids(const Violations& found) {
  std::string text;
  for (const Violation& v : found) text += v.rule + " at " + v.field + ": " + v.reason + "\n";
  return text;
}

TEST(CheckpointRules, EachCaseViolatesOnlyItsRule) {
  std::set<std::string> broken;
  for (const BadCase& bad : BadCases()) {
    v1::JobSpec job = GoodJob();
    bad.write(job.mutable_checkpoint());
    const Violations found = CheckJob(job);
    ASSERT_EQ(found.size(), 1u) << "for " << bad.rule << ":\n" << Ids(found);
    EXPECT_EQ(found[0].rule, bad.rule);
    EXPECT_EQ(found[0].field, std::string("checkpoint.") + bad.field) << bad.rule;
    EXPECT_GT(found[0].reason.size(), 15u) << bad.rule;
    EXPECT_GT(found[0].fix.size(), 10u) << bad.rule;
    EXPECT_EQ(found[0].level == ViolationLevel::kAdjust, !found[0].after.empty()) << bad.rule;
    broken.insert(bad.rule);
  }
  for (const RuleText& rule : AllRules()) {
    if (rule.id.rfind("checkpoint_", 0) != 0 || rule.id == "checkpoint_export_model") continue;
    if (rule.id == "checkpoint_dir_taken") continue;  // Checked by the coordinator, which knows other jobs.
    EXPECT_EQ(broken.count(rule.id), 1u) << rule.id << " has no test case";
    EXPECT_GT(rule.text.size(), 10u) << rule.id;
  }
}

TEST(CheckpointRules, AcceptsSaveAndLoad) {
  v1::JobSpec job = GoodJob();
  v1::Checkpoint* checkpoint = Saving(job.mutable_checkpoint());
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  checkpoint->set_keep_last(1);
  checkpoint->set_keep_every(100);
  checkpoint->set_load("/runs/0/iter_0000010..kept");
  checkpoint->set_load_optimizer(false);
  job.mutable_restart()->set_max_attempts(9);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  checkpoint->set_every_steps(0);  // Only the one at the end.
  checkpoint->clear_keep_every();
  job.clear_restart();
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
}

TEST(CheckpointRules, AcceptsMinutesOnly) {
  v1::JobSpec job = GoodJob();
  job.mutable_checkpoint()->set_dir("/runs/1");
  job.mutable_checkpoint()->set_every_minutes(30);
  job.mutable_checkpoint()->set_on_end(false);
  job.mutable_restart()->set_max_attempts(9);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  job.mutable_checkpoint()->set_on_end(true);
  job.mutable_checkpoint()->set_every_steps(201);  // More than the job's steps.
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
}

TEST(CheckpointRules, RejectsExportWithoutTransformersFamily) {
  v1::JobSpec job = GoodJob();
  Saving(job.mutable_checkpoint())->set_export_("hf");
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  job.mutable_model()->clear_preset();
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(256);
  llama->set_hidden_size(64);
  llama->set_intermediate_size(128);
  llama->set_layers(2);
  llama->set_heads(2);
  llama->set_qk_norm(true);
  EXPECT_TRUE(CheckJob(job).empty()) << Ids(CheckJob(job));
  llama->set_attention_bias(true);
  const auto exported = [&job] {
    int found = 0;
    for (const Violation& v : CheckJob(job)) found += v.rule == "checkpoint_export_model" ? 1 : 0;
    return found;
  };
  EXPECT_EQ(exported(), 1) << Ids(CheckJob(job));
  v1::Plugin* plugin = job.mutable_model()->mutable_plugin();
  plugin->set_path("/models/mine.so");
  plugin->set_vocab_size(512);
  for (const char* name : {"first", "last"}) {
    v1::Plugin::Unit* unit = plugin->add_units();
    unit->set_name(name);
    unit->set_output_values(512);
    v1::Plugin::Param* param = unit->add_params();
    param->set_name("weight");
    param->add_shape(512);
  }
  EXPECT_EQ(exported(), 1) << Ids(CheckJob(job));
}

// Invalid or unparsed steps do not make an interval invalid.
TEST(CheckpointRules, IgnoresIntervalIfStepsAreUnknown) {
  v1::JobSpec job = GoodJob();
  Saving(job.mutable_checkpoint())->set_on_end(false);
  job.mutable_train()->set_steps(-5);
  ASSERT_EQ(CheckJob(job).size(), 1u) << Ids(CheckJob(job));
  EXPECT_EQ(CheckJob(job)[0].rule, "steps_range");
  job.mutable_train()->clear_steps();
  EXPECT_TRUE(CheckJob(job, {"train.steps"}).empty()) << Ids(CheckJob(job, {"train.steps"}));
}

// Regression test: an unknown export was also reported as needing a checkpoint.
TEST(CheckpointRules, OmitsConsequencesOfUnknownExport) {
  v1::JobSpec job = GoodJob();
  job.mutable_checkpoint()->set_export_("hff");
  const Violations found = CheckJob(job);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].rule, "checkpoint_export_known");
}

}  // namespace
}  // namespace fsdpd

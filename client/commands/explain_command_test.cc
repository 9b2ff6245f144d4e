// Tests of explain: exit code, stdout and stderr.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "client/commands/field_docs.h"
#include "client/connect/outcome.h"
#include "client/migrate/conversion_rules.h"
#include "client/migrate/megatron_rules.h"
#include "client/testing/command_case.h"

namespace fsdpd {
namespace {

using ExplainCommandTest = ServedCommandCase;

TEST_F(ExplainCommandTest, ExplainNeedsNoCoordinator) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "train.micro_batch"}), kExitOk);
  EXPECT_EQ(out_.find("train.micro_batch  <integer>\n  "), 0u) << out_;
  EXPECT_EQ(Run({"explain", "precision.main_grads"}), kExitOk);
  EXPECT_NE(out_.find("\nrules:\n  main_grads_not_fp16\n    main_grads must be fp32 or bf16\n"),
            std::string::npos)
      << "validation rejects some values of the type: " << out_;
  EXPECT_EQ(Run({"explain", "model.preset"}), kExitOk);
  EXPECT_NE(out_.find("\nvalues:\n  tiny\n"), std::string::npos)
      << "preset_unknown sends readers here: " << out_;
  EXPECT_NE(out_.find("\n  qwen3-235b-a22b\n"), std::string::npos) << out_;
  EXPECT_EQ(Run({"explain", "parallel"}), kExitOk);
  EXPECT_NE(out_.find("\n  tensor  <integer>\n"), std::string::npos) << out_;
  EXPECT_EQ(Run({"explain", "preset_unknown"}), kExitOk) << "a rule: " << err_;
  EXPECT_EQ(out_,
            "preset_unknown  <rule>\n  Rule: the preset must be a built-in one\n  Field: model.preset\n"
            "  If violated: an error; the job is rejected\n");
  for (const char* rule : {"profile_no_map", "profile_unknown"})
    EXPECT_EQ(Run({"explain", rule}), kExitOk) << "of a device profile: " << err_;
  EXPECT_EQ(Run({"explain", "budget_above_offer"}), kExitOk) << "one that the plan finds: " << err_;
  EXPECT_NE(out_.find("Field: resources.memory_budget_bytes\n  If violated: a warning\n"), std::string::npos)
      << out_;
  EXPECT_EQ(Run({"explain", "node_selector_meets_nodes"}), kExitOk) << "one of the coordinator's: " << err_;
  EXPECT_NE(out_.find("Field: resources.node_selector\n  If violated: a warning\n"), std::string::npos)
      << out_;
  EXPECT_EQ(Run({"explain", "two_of_oneof"}), kExitOk) << "one of the text: " << err_;
  EXPECT_EQ(Run({"explain", "token_file_here"}), kExitOk) << "one that validate finds: " << err_;
  EXPECT_EQ(Run({"explain", "lr_positive"}), kExitOk);
  EXPECT_NE(out_.find("\nlr_positive  <rule>\n"), std::string::npos)
      << "specs and migrate both have this rule: " << out_;
  EXPECT_EQ(Run({"explain", "preset_unknow"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean preset_unknown?"), std::string::npos) << err_;
  EXPECT_EQ(Run({"explain", "trian"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean train?"), std::string::npos) << err_;
  EXPECT_EQ(Run({"explain", "hf_not_know"}), kExitUsage);
  EXPECT_NE(err_.find("; did you mean hf_not_known?"), std::string::npos) << "run together: " << err_;
  EXPECT_EQ(Run({"explain", "BAD_SPEC"}), kExitUsage);
  EXPECT_NE(err_.find("; renamed to INVALID_SPEC [INVALID_FLAG]\n"), std::string::npos) << err_;
}

// Regression: the rule out_of_range was printed for the error id OUT_OF_RANGE.
TEST_F(ExplainCommandTest, ExplainDistinguishesReasonFromRule) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "OUT_OF_RANGE"}), kExitOk);
  EXPECT_EQ(out_.find("OUT_OF_RANGE  <error id>\n"), 0U) << out_;
  EXPECT_EQ(Run({"explain", "out_of_range"}), kExitOk);
  EXPECT_EQ(out_.find("out_of_range  <rule>\n"), 0U) << out_;
}

// Regression: only complete paths were found, and the rules of a section's fields were not listed.
TEST_F(ExplainCommandTest, ExplainFindsFieldByTheEndOfItsPath) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "train.lora"}), kExitOk);
  const std::string whole = out_;
  EXPECT_NE(whole.find("\n  lora_needs_llama\n"), std::string::npos) << whole;
  EXPECT_NE(whole.find("\n  lora_rank_range\n    lora.rank must be from 1 to 1024\n"), std::string::npos);
  EXPECT_NE(whole.find("\n  lora_targets_match\n"), std::string::npos);
  EXPECT_EQ(Run({"explain", "LoRA"}), kExitOk) << err_;
  EXPECT_EQ(out_, whole);
  EXPECT_EQ(Run({"explain", "lora.targets"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("train.lora.targets  <list of string>\n"), 0U) << out_;
  EXPECT_EQ(Run({"explain", "every_steps"}), kExitUsage);
  EXPECT_EQ(err_,
            "fsdpctl: unknown field every_steps; did you mean train.evaluation.every_steps, "
            "checkpoint.every_steps? [INVALID_FLAG]\n");
}

// Regression: these rules were unknown, although migrate prints their ids.
TEST_F(ExplainCommandTest, ExplainIncludesMigrateRules) {
  server_.Stop();
  for (const std::vector<MigrateRule>& rules : {MegatronRules(), ConversionRules()}) {
    for (const MigrateRule& rule : rules) {
      EXPECT_EQ(Run({"explain", rule.id}), kExitOk) << rule.id << err_;
      EXPECT_NE(out_.find(rule.id + "  <rule>\n"), std::string::npos) << out_;
    }
  }
  EXPECT_EQ(Run({"explain", "dropout"}), kExitOk);
  EXPECT_EQ(out_,
            "dropout  <rule>\n  Rule: dropout becomes 0: it is not supported\n"
            "  Reported by: fsdpctl migrate\n  If violated: a warning\n");
}

// tests/tidy/test_error_ids.py compares the registry with the ids in the code.
TEST_F(ExplainCommandTest, ExplainsErrorIds) {
  server_.Stop();
  for (const FieldDoc& id : ErrorIds()) {
    EXPECT_EQ(Run({"explain", id.name}), kExitOk) << err_;
    EXPECT_TRUE(absl::StrContains(out_, absl::StrCat(id.name, "  <", id.type, ">\n  "))) << out_;
    EXPECT_TRUE(absl::StrContains(out_, "\n  Fix: ")) << out_;
  }
  EXPECT_EQ(Run({"explain", "role_required"}), kExitOk) << err_;
  EXPECT_EQ(
      out_,
      "ROLE_REQUIRED  <error id>\n"
      "  PERMISSION_DENIED. The call requires a higher role: metadata has both, \"needed\" and \"role\".\n"
      "  Fix: Ask an operator for that role, or to make the call.\n");
  EXPECT_EQ(Run({"explain", "hang"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("HANG  <failure cause>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "data"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("failure cause"), std::string::npos) << "data is a field: " << out_;
  EXPECT_EQ(Run({"explain", "NODE_NOT_IDEL"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean NODE_NOT_IDLE?"), std::string::npos) << err_;
}

TEST_F(ExplainCommandTest, ExplainIgnoresCaseAndPrefix) {
  server_.Stop();
  EXPECT_EQ(Run({"explain", "LR_POSITIVE"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("lr_positive  <rule>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "REASON_NODE_NOT_IDLE"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("NODE_NOT_IDLE  <error id>\n"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "Job.waiting"}), kExitOk) << err_;
  EXPECT_EQ(out_.find("job.waiting  <"), 0u) << out_;
  EXPECT_EQ(Run({"explain", "LR_POSITIV"}), kExitUsage);
  EXPECT_NE(err_.find("did you mean lr_positive?"), std::string::npos) << err_;
}

}  // namespace
}  // namespace fsdpd

// Messages of violations over specs with extreme values: a missing field is reported as missing and not as 0,
// and suggested values are valid.
#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <regex>
#include <set>

#include "base/seeds.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

const int kSeeds = Seeds(2000);

std::string ReasonAt(const Violations& found, const std::string& field) {
  for (const Violation& violation : found) {
    if (violation.field == field) return violation.reason;
  }
  return "";
}

TEST(RuleMessages, IdsAreUnique) {
  std::set<std::string> ids;
  for (const RuleText& rule : AllRules()) EXPECT_TRUE(ids.insert(rule.id).second) << rule.id;
  EXPECT_GE(ids.size(), 45u);
}

TEST(RuleMessages, UnknownPresetSuggestsSimilarOnes) {
  const auto of_preset = [](const std::string& name) {
    v1::JobSpec job;
    job.mutable_model()->set_preset(name);
    const Violations found = CheckJob(job);
    const auto unknown = std::find_if(found.begin(), found.end(),
                                      [](const Violation& v) { return v.rule == "preset_unknown"; });
    return unknown == found.end() ? Violation() : *unknown;
  };
  EXPECT_EQ(of_preset("lama3-8b").fix, "write preset: llama3-8b, or run `fsdpctl explain model.preset`");
  EXPECT_EQ(of_preset("llama3-8c").reason,
            "unknown preset 'llama3-8c'; similar presets: llama3-8b, llama3-1b, llama3-70b");
  // Hugging Face spelling; nothing was suggested once.
  EXPECT_EQ(of_preset("Llama3-8B").fix, "write preset: llama3-8b, or run `fsdpctl explain model.preset`");
  EXPECT_EQ(of_preset("GPT2-XL").fix, "write preset: gpt2-xl, or run `fsdpctl explain model.preset`");
  EXPECT_EQ(of_preset("bert-base").reason, "unknown preset 'bert-base'");
  EXPECT_EQ(of_preset("bert-base").fix, "run `fsdpctl explain model.preset`");
  EXPECT_EQ(of_preset("gpt2-xxl").fix, "run `fsdpctl explain model.preset`") << "not gpt2-xl, another model";
  EXPECT_EQ(of_preset("gtp2-xl").fix, "write preset: gpt2-xl, or run `fsdpctl explain model.preset`");
}

// "over 1 ranks ...: use fewer ranks"
TEST(RuleMessages, DoesNotSuggestFewerThanOneRank) {
  v1::JobSpec job;
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(32);
  llama->set_hidden_size(8);
  llama->set_intermediate_size(16);
  llama->set_layers(1);
  llama->set_heads(2);
  llama->set_kv_heads(2);
  const auto warned = [&] {
    const Violations found = CheckJob(job);
    return std::any_of(found.begin(), found.end(),
                       [](const Violation& v) { return v.rule == "few_parameters_per_rank"; });
  };
  EXPECT_FALSE(warned());
  job.mutable_resources()->set_ranks_per_node(2);
  EXPECT_TRUE(warned());
}

// Regression test: reported "steps is 0" for an unset field.
TEST(RuleMessages, DistinguishesMissingFieldFromZero) {
  v1::JobSpec job;
  job.mutable_model()->mutable_llama()->mutable_rope_scaling();
  job.mutable_train()->mutable_evaluation();
  job.mutable_optimizer()->mutable_sgd();
  const v1::JobSpec missing = job;
  v1::Llama* llama = job.mutable_model()->mutable_llama();
  llama->set_vocab_size(0);
  llama->set_hidden_size(0);
  llama->set_intermediate_size(0);
  llama->set_layers(0);
  llama->set_heads(0);
  llama->mutable_rope_scaling()->set_factor(0);
  job.mutable_train()->set_steps(0);
  job.mutable_train()->mutable_evaluation()->set_every_steps(0);
  job.mutable_data()->set_sequence_length(0);
  job.mutable_optimizer()->mutable_sgd()->set_lr(0);
  const Violations of_missing = CheckJob(missing), of_zeros = CheckJob(job);
  for (const char* name :
       {"train.steps", "train.evaluation.every_steps", "data.sequence_length", "optimizer.sgd.lr",
        "model.llama.vocab_size", "model.llama.hidden_size", "model.llama.intermediate_size",
        "model.llama.layers", "model.llama.heads", "model.llama.rope_scaling.factor"}) {
    EXPECT_NE(ReasonAt(of_missing, name).find(" is missing"), std::string::npos) << name;
    EXPECT_NE(ReasonAt(of_zeros, name).find(" is 0 "), std::string::npos) << name;
  }
  EXPECT_NE(ReasonAt(of_missing, "name").find("the name is missing"), std::string::npos);
}

TEST(RuleMessages, ReportsMissingSizesOfEveryModel) {
  v1::JobSpec job;
  job.mutable_model()->mutable_gpt2();
  for (const char* name : {"vocab_size", "hidden_size", "layers", "heads", "positions"}) {
    EXPECT_EQ(ReasonAt(CheckJob(job), absl::StrCat("model.gpt2.", name)),
              absl::StrCat(name, " is missing, and it has no default"));
  }
  job.mutable_model()->mutable_plugin();
  EXPECT_NE(ReasonAt(CheckJob(job), "model.plugin.vocab_size").find(" is missing"), std::string::npos);
  job.mutable_data()->set_sequence_length(8);
  job.mutable_train()->set_steps(10);
  job.mutable_schedule()->mutable_wsd();
  EXPECT_NE(ReasonAt(CheckJob(job), "schedule.wsd.decay_steps").find(" is missing"), std::string::npos);
}

constexpr int64_t kWhole[] = {0,
                              1,
                              2,
                              7,
                              8,
                              64,
                              512,
                              -1,
                              -1000,
                              1 << 14,
                              1000,
                              1 << 20,
                              1 << 24,
                              1 << 30,
                              1000'003,
                              1LL << 31,
                              1LL << 40,
                              1LL << 53,
                              std::numeric_limits<int64_t>::max(),
                              std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<int64_t>::max() - 1};
constexpr double kReal[] = {0, 1, -1, 0.5, 1e-300, 1e30, -1e30, 1e308};

template <typename T, size_t n>
T Of(const T (&values)[n], std::mt19937* random) {
  return values[std::uniform_int_distribution<size_t>(0, n - 1)(*random)];
}

// Writes random values into some fields of every message of the spec.
void Scribble(Message* message, std::mt19937* random) {
  const auto& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message->GetDescriptor()->field(i);
    const bool shared = field->real_containing_oneof() != nullptr;
    if (std::uniform_int_distribution<int>(0, shared ? 4 : 1)(*random) != 0) continue;
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      Scribble(field->is_repeated() ? reflection.AddMessage(message, field)
                                    : reflection.MutableMessage(message, field),
               random);
    } else if (field->is_repeated()) {
      continue;
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT64) {
      reflection.SetInt64(message, field, Of(kWhole, random));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE) {
      reflection.SetDouble(message, field, Of(kReal, random));
    }
  }
}

TEST(RuleMessages, SuggestedNumbersAreValid) {
  const std::regex negative("(^|[^\\w.])-[0-9]"), too_many("[0-9]{17}|[0-9]e\\+|\\binf\\b|\\bnan\\b");
  int advised = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    std::mt19937 random(seed);
    v1::JobSpec job;
    Scribble(&job, &random);
    if (seed % 2 == 0) job.mutable_model()->set_preset("tiny");
    for (const Violation& fault : CheckJob(job)) {
      advised += fault.fix.empty() ? 0 : 1;
      EXPECT_FALSE(std::regex_search(fault.fix, negative) || std::regex_search(fault.fix, too_many))
          << "seed " << seed << ": " << fault.rule << ": " << fault.reason << "; " << fault.fix;
    }
  }
  EXPECT_GT(advised, kSeeds);
}

}  // namespace
}  // namespace fsdpd

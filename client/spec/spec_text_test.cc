#include "client/spec/spec_text.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

#include "base/seeds.h"
#include "base/spec_text/renamed_fields.h"
#include "client/spec/spec_print.h"

namespace fsdpd {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

constexpr char kGood[] = R"(# every kind of value
name: tiny-llama
model: {preset: tiny}
data: {tokens: [{path: corpus.txt, type: u8, weight: 2}], sequence_length: 128}
train: {steps: 2e2, micro_batch: 4, global_batch: 16, seed: 1}
optimizer: {adamw: {lr: 1e-3, betas: [0.9, 0.95]}, clip_norm: 1.0}
schedule: {cosine: {warmup_steps: 20, min_lr_ratio: 0.1}}
precision: {compute: fp32}
fsdp:
  strategy: optim_grads_params
  prefetch_bytes: auto
  recompute: none
  outer: {size: 1, strategy: STRATEGY_NO_SHARD}
resources: {nodes: 2, ranks_per_node: 2, device: cpu, memory_budget_bytes: 1.5GiB}
telemetry: {trace_steps: [1, 2], memory_snapshot: false}
)";

std::string ViolationsOf(absl::string_view text, const std::vector<std::string>& sets = {}) {
  std::string out;
  for (const LocatedViolation& located : ParseSpec(text, "f", sets).violations)
    absl::StrAppend(&out, Render(located), "\n");
  return out;
}

TEST(SpecText, ReadsVariablesAsMapOrList) {
  for (const char* written : {"name: a\nenv: {NCCL_DEBUG: INFO, CUDA_LAUNCH_BLOCKING: 1, CUDA_X: \"\"}",
                              "name: a\nenv:\n- {name: NCCL_DEBUG, value: INFO}\n"
                              "- {name: CUDA_LAUNCH_BLOCKING, value: 1}\n- name: CUDA_X"}) {
    const SpecText text = ParseSpec(written, "f");
    EXPECT_EQ(ViolationsOf(written), "");
    ASSERT_EQ(text.spec.env_size(), 3) << written;
    EXPECT_EQ(text.spec.env(0).name(), "NCCL_DEBUG");
    EXPECT_EQ(text.spec.env(0).value(), "INFO");
    EXPECT_EQ(text.spec.env(1).value(), "1");
    EXPECT_EQ(text.spec.env(2).value(), "");
    const SpecText again = ParseSpec(ToYaml(text.spec), "f");
    EXPECT_TRUE(MessageDifferencer::Equals(again.spec, text.spec)) << ToYaml(text.spec);
  }
  const SpecText set = ParseSpec("name: a", "f", {"env.NCCL_DEBUG=WARN"});
  ASSERT_EQ(set.spec.env_size(), 1);
  EXPECT_EQ(set.spec.env(0).value(), "WARN");
}

TEST(SpecText, LocatesVariables) {
  const SpecText text = ParseSpec("env:\n  NCCL_DEBUG: INFO\n  NCCL_ALGO:\n  CUDA_X: [1]\n", "f");
  EXPECT_EQ(text.places.at("env[0].name").line, 2);
  EXPECT_EQ(text.places.at("env[0].value").column, 15);
  EXPECT_EQ(
      ViolationsOf("env:\n  NCCL_DEBUG: INFO\n  NCCL_ALGO:\n  CUDA_X: [1]\n"),
      R"(f:3:3: error: env[1].value: has no value; write a value, "" for an empty one, or remove the field )"
      "[no_value]\n"
      "f:4:11: error: env[2].value: a list is not a single value; write NAME: value [wrong_type]\n");
}

TEST(SpecText, ReadsYaml) {
  const SpecText text = ParseSpec(kGood, "f");
  ASSERT_EQ(ViolationsOf(kGood), "");
  const v1::JobSpec& spec = text.spec;
  EXPECT_EQ(spec.name(), "tiny-llama");
  EXPECT_EQ(spec.model().preset(), "tiny");
  EXPECT_EQ(spec.data().tokens(0).type(), v1::TOKEN_TYPE_U8);
  EXPECT_EQ(spec.data().tokens(0).weight(), 2);
  EXPECT_EQ(spec.train().steps(), 200);
  EXPECT_EQ(spec.optimizer().adamw().lr(), 1e-3);
  EXPECT_EQ(spec.optimizer().adamw().betas(1), 0.95);
  EXPECT_TRUE(spec.schedule().has_cosine());
  EXPECT_EQ(spec.fsdp().strategy(), v1::STRATEGY_OPTIM_GRADS_PARAMS);
  EXPECT_FALSE(spec.fsdp().has_prefetch_bytes());
  EXPECT_EQ(spec.fsdp().outer().strategy(), v1::STRATEGY_NO_SHARD);
  EXPECT_EQ(spec.resources().memory_budget_bytes(), 1610612736);
  EXPECT_EQ(spec.telemetry().trace_steps_size(), 2);
  EXPECT_EQ(text.places.at("fsdp.outer.size").line, 13);
  EXPECT_EQ(text.places.at("data.tokens[0].type").column, 36);
}

TEST(SpecText, ReadsCanonicalProtoJson) {
  const SpecText text = ParseSpec(
      R"({"name": "a", "train": {"microBatch": "4", "steps": 9}, "fsdp": {"strategy": "STRATEGY_OPTIM"}})",
      "f");
  ASSERT_TRUE(text.violations.empty()) << Render(text.violations[0]);
  EXPECT_EQ(text.spec.train().micro_batch(), 4);
  EXPECT_EQ(text.spec.fsdp().strategy(), v1::STRATEGY_OPTIM);
}

TEST(SpecText, SuggestsSimilarField) {
  EXPECT_EQ(ViolationsOf("fsdp:\n  stratgy: optim\n"),
            "f:2:3: error: unknown field fsdp.stratgy; did you mean strategy? [unknown_field]\n");
  EXPECT_EQ(ViolationsOf("resources: {memory_budget: 1}"),
            "f:1:13: error: unknown field resources.memory_budget; did you mean memory_budget_bytes? "
            "[unknown_field]\n");
  EXPECT_EQ(ViolationsOf("model: {llama: {vocab: 9}}"),
            "f:1:17: error: unknown field model.llama.vocab; did you mean vocab_size? [unknown_field]\n");
  EXPECT_EQ(ViolationsOf("optimizer: {lr: 1}"),
            "f:1:13: error: unknown field optimizer.lr; did you mean optimizer.adamw.lr? [unknown_field]\n");
  EXPECT_EQ(ViolationsOf("data: {path: /x}"),
            "f:1:8: error: unknown field data.path; did you mean data.tokens[0].path? [unknown_field]\n");
  // Regression: the suggestion was model.plugin.units[0].params[0].shape.
  EXPECT_EQ(ViolationsOf("train: {shape: 3}").find("did you mean"), std::string::npos)
      << ViolationsOf("train: {shape: 3}");
  EXPECT_EQ(ViolationsOf("model: {llama: {per_token: 2}}"),
            "f:1:17: error: unknown field model.llama.per_token; did you mean model.llama.experts.per_token? "
            "[unknown_field]\n");
  EXPECT_EQ(ViolationsOf("restart: {zzzzzzzzz: 1}"),
            "f:1:11: error: unknown field restart.zzzzzzzzz; fields here: max_attempts, hang_seconds, "
            "elastic [unknown_field]\n");
}

TEST(SpecText, SuggestsFieldByNameInPeft) {
  EXPECT_EQ(ViolationsOf("train: {lora: {r: 8}}"),
            "f:1:16: error: unknown field train.lora.r; did you mean rank? [unknown_field]\n");
  EXPECT_NE(ViolationsOf("train: {lora: {load_in_4bit: true}}").find("did you mean base_type?"),
            std::string::npos);
  EXPECT_EQ(
      ViolationsOf("train: {lora: {targets: all-linear}}"),
      "f:1:25: error: train.lora.targets: 'all-linear' is not a list; leave it out: all matrices that can "
      "have an adapter are the default [wrong_type]\n");
  EXPECT_EQ(ViolationsOf("train: {lora: {use_rslora: true}}"),
            "f:1:16: error: unknown field train.lora.use_rslora; did you mean rank_stabilized? "
            "[unknown_field]\n");
}

TEST(SpecText, SuggestsFieldByNameInOtherTrainers) {
  EXPECT_EQ(
      ViolationsOf("train: {num_train_epochs: 3}"),
      "f:1:9: error: unknown field train.num_train_epochs; did you mean train.epochs? [unknown_field]\n");
  EXPECT_EQ(ViolationsOf("gradient_accumulation_steps: 8"),
            "f:1:1: error: unknown field gradient_accumulation_steps; did you mean train.global_batch? "
            "[unknown_field]\n");
}

// The table has the names of release 0.1.
TEST(SpecText, RejectsRenamedField) {
  const std::map<std::string, std::string> groups = {
      {"Data", "data: {"},
      {"InitialValues", "train: {initial: {"},
      {"Plugin.Unit", "model: {plugin: {units: [{"},
  };
  for (const RenamedField& field : RenamedFields()) {
    ASSERT_EQ(groups.count(field.message), 1U) << field.message;
    const std::string& group = groups.at(field.message);
    std::string closed;
    for (auto c = group.rbegin(); c != group.rend(); ++c) closed += *c == '{' ? "}" : *c == '[' ? "]" : "";
    const SpecText text = ParseSpec(absl::StrCat(group, field.before, ": 1", closed), "f");
    ASSERT_EQ(text.violations.size(), 1U) << field.before;
    EXPECT_EQ(text.violations[0].violation.rule, "renamed_field");
    EXPECT_EQ(text.violations[0].place.line, 1);
    EXPECT_EQ(text.violations[0].place.column, static_cast<int>(group.size()) + 1);
    EXPECT_EQ(text.violations[0].violation.reason, "renamed to " + field.name);
  }
}

TEST(SpecText, SuggestsSimilarValue) {
  EXPECT_EQ(ViolationsOf("fsdp: {strategy: optim_grad}"),
            "f:1:18: error: 'optim_grad' is not a value of fsdp.strategy; did you mean optim_grads? "
            "[unknown_value]\n");
  EXPECT_EQ(
      ViolationsOf("resources: {device: 2}"),
      "f:1:21: error: '2' is not a value of resources.device; write one of cpu, cuda [unknown_value]\n");
}

TEST(SpecText, ReportsAllErrors) {
  EXPECT_EQ(ViolationsOf(R"(name: [a]
train:
  steps: many
  steps: 2
  seed: 1.5
  micro_batch: 1e300
optimizer:
  clip_norm: .nan
  adamw: {betas: 0.9, eps: 1e999}
schedule:
  cosine: {}
  linear: {}
telemetry: {memory_snapshot: yes, trace_steps: [1, x]}
model:
data: 3
fsdp: {prefetch_bytes: 12QB}
)"),
            R"(f:1:7: error: name: a list is not a single value; write a single value [wrong_type]
f:3:10: error: train.steps: 'many' is not an integer; write digits, for example 100 [wrong_type]
f:4:3: error: train.steps is written twice; keep one [duplicate_field]
f:5:9: error: train.seed: '1.5' is not an integer; write digits, for example 100 [wrong_type]
f:6:16: error: train.micro_batch: 1e300 does not fit; write an integer of at most 18 digits [out_of_range]
f:8:14: error: optimizer.clip_norm: '.nan' is not a number; write a number, for example 0.1 or 1e-3 [wrong_type]
f:9:18: error: optimizer.adamw.betas: '0.9' is not a list; write [...] [wrong_type]
f:9:28: error: optimizer.adamw.eps: 1e999 does not fit; write a number of at most 308 digits [out_of_range]
f:12:3: error: schedule.linear: linear is not supported with cosine; keep one of them [two_of_oneof]
f:13:30: error: telemetry.memory_snapshot: 'yes' is not true or false; write true or false [wrong_type]
f:13:52: error: telemetry.trace_steps[1]: 'x' is not an integer; write digits, for example 100 [wrong_type]
f:14:1: error: model: has no value; write {} for the defaults, or remove the field [no_value]
f:15:7: error: data: '3' is not a group of fields; its fields: tokens, synthetic, sequence_length, validation, ignore_index, document_end_token, packing, too_long [wrong_type]
f:16:24: error: fsdp.prefetch_bytes: '12QB' is not a size; write bytes, or a number with KiB, MiB, GiB [wrong_type]
)");
}

TEST(SpecText, RejectsEmptyFile) {
  EXPECT_EQ(ViolationsOf("# nothing\n"),
            "f:1:1: error: the spec is empty; write at least name, model, data and train.steps [no_value]\n");
}

TEST(SpecText, RejectsFieldUnderTwoNames) {
  EXPECT_EQ(ViolationsOf("train: {micro_batch: 1, microBatch: 2}"),
            "f:1:25: error: train.micro_batch is written twice; keep one [duplicate_field]\n");
}

TEST(SpecText, AutoRequiresOptionalField) {
  EXPECT_EQ(ViolationsOf("fsdp: {strategy: auto, prefetch_bytes: auto, recompute: auto}"), "");
  EXPECT_EQ(ViolationsOf("checkpoint: {every_steps: auto}"),
            "f:1:27: error: checkpoint.every_steps: 'auto' is not an integer; write digits, for example 100 "
            "[wrong_type]\n");
  // The required fields are then missing, which validation reports.
  EXPECT_FALSE(ParseSpec("train: {steps: auto}", "f").spec.train().has_steps());
}

// Like a template without a value to fill in: the job would start from scratch, or save no checkpoints.
TEST(SpecText, RejectsEmptyString) {
  EXPECT_EQ(ViolationsOf("checkpoint:\n  load: ''\n  dir: \"\"\n"),
            "f:2:3: error: checkpoint.load: has no value; write a value, or remove the field [no_value]\n"
            "f:3:3: error: checkpoint.dir: has no value; write a value, or remove the field [no_value]\n");
  EXPECT_EQ(ViolationsOf("checkpoint: {load: /runs/7}", {"checkpoint.load="}), "")
      << "--set may clear a field";
  EXPECT_EQ(ViolationsOf("env: [{name: NCCL_DEBUG, value: ''}]"), "");
}

TEST(SpecText, BoundsNumberOfErrors) {
  std::string text = "telemetry: {trace_steps: [";
  for (int i = 0; i < 1000; ++i) text += "x,";
  EXPECT_EQ(ParseSpec(text + "x]}", "f").violations.size(), 100u);
}

TEST(SpecText, SetOverridesFile) {
  const SpecText text = ParseSpec(kGood, "f",
                                  {"train.steps=7", "data.tokens[0].path=x y", "data.tokens[1]={path: z}",
                                   "checkpoint.dir=", "restart.max_attempts=2"});
  ASSERT_TRUE(text.violations.empty()) << Render(text.violations[0]);
  EXPECT_EQ(text.spec.train().steps(), 7);
  EXPECT_EQ(text.spec.train().micro_batch(), 4);
  EXPECT_EQ(text.spec.data().tokens(0).path(), "x y");
  EXPECT_EQ(text.spec.data().tokens(1).path(), "z");
  EXPECT_EQ(text.spec.restart().max_attempts(), 2);
  EXPECT_EQ(text.places.at("train.steps").file, "--set train.steps=7");
}

// Regression: a violation in a group that --set created was located at an unrelated line of the file.
TEST(SpecText, LocatesCreatedGroupAtSet) {
  const SpecText text = ParseSpec(kGood, "f", {"fsdp.offload.optimizer=true", "data.validation[0].path=x"});
  ASSERT_TRUE(text.violations.empty()) << Render(text.violations[0]);
  EXPECT_EQ(text.places.at("fsdp.offload").file, "--set fsdp.offload.optimizer=true");
  EXPECT_EQ(text.places.at("data.validation").file, "--set data.validation[0].path=x");
  EXPECT_EQ(text.places.at("data.validation[0]").file, "--set data.validation[0].path=x");
  EXPECT_EQ(text.places.at("fsdp").file, "f") << "the file has it";
}

TEST(SpecText, ReportsInvalidSet) {
  EXPECT_EQ(ViolationsOf("", {"train.stps=7"}),
            "--set train.stps=7:1:1: error: unknown field train.stps; did you mean steps? [unknown_field]\n");
  EXPECT_EQ(ViolationsOf("", {"train"}),
            "--set train:1:1: error: train: is not path=value; write path=value, for example train.steps=20 "
            "[bad_set]\n");
  EXPECT_NE(ViolationsOf("name: a", {"name.x=1"}).find("[bad_set]"), std::string::npos);
  EXPECT_NE(ViolationsOf("", {"data.tokens[5].path=1"}).find("[bad_set]"), std::string::npos);
  EXPECT_NE(ViolationsOf("", {"data.tokens[=1"}).find("[bad_set]"), std::string::npos);
  EXPECT_NE(ViolationsOf("", {"name=[1"}).find("[bad_set]"), std::string::npos);
}

// Fills all fields of a message with random values, so that new fields are covered automatically.
class RandomSpec {
 public:
  explicit RandomSpec(int seed) : random_(seed) {}

  void Fill(Message* message) {
    for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
      const FieldDescriptor* field = message->GetDescriptor()->field(i);
      if (Pick(3) == 0) continue;
      if (field->is_repeated()) {
        for (int n = Pick(3); n >= 0; --n) Set(message, field);
      } else {
        Set(message, field);
      }
    }
  }

 private:
  int Pick(int bound) { return static_cast<int>(random_() % bound); }

  std::string Text() {
    static const char* const kPieces[] = {"a", "Z",  "0",  " ", "\"", "\\", "\n", "\t",   "\x01",
                                          ":", "# ", "- ", "é", "€",  "{",  "'",  "\x7f", "auto"};
    std::string text;
    for (int n = Pick(6); n >= 0; --n) text += kPieces[Pick(sizeof(kPieces) / sizeof(kPieces[0]))];
    return text;
  }

  void Set(Message* m, const FieldDescriptor* f) {
    const auto* r = m->GetReflection();
    const bool add = f->is_repeated();
    switch (f->cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        return Fill(add ? r->AddMessage(m, f) : r->MutableMessage(m, f));
      case FieldDescriptor::CPPTYPE_STRING: {
        const std::string text = Text();
        return add ? r->AddString(m, f, text) : r->SetString(m, f, text);
      }
      case FieldDescriptor::CPPTYPE_INT64: {
        const auto value = static_cast<int64_t>(random_()) >> Pick(64);
        return add ? r->AddInt64(m, f, value) : r->SetInt64(m, f, value);
      }
      case FieldDescriptor::CPPTYPE_DOUBLE: {
        const double value = std::ldexp(static_cast<double>(random_()) - 9e18, Pick(200) - 150);
        return add ? r->AddDouble(m, f, value) : r->SetDouble(m, f, value);
      }
      case FieldDescriptor::CPPTYPE_BOOL:
        return add ? r->AddBool(m, f, Pick(2) == 1) : r->SetBool(m, f, Pick(2) == 1);
      case FieldDescriptor::CPPTYPE_ENUM:
        return r->SetEnum(m, f, f->enum_type()->value(Pick(f->enum_type()->value_count())));
      default:
        FAIL() << f->full_name();
    }
  }

  std::mt19937_64 random_;
};

TEST(SpecText, RoundTrips) {
  for (int seed = 0; seed < Seeds(300); ++seed) {
    v1::JobSpec spec;
    RandomSpec(seed).Fill(&spec);
    for (const std::string& text : {ToYaml(spec), ToJson(spec)}) {
      const SpecText back = ParseSpec(text, "f");
      ASSERT_TRUE(back.violations.empty()) << Render(back.violations[0]) << "\n" << text;
      ASSERT_TRUE(MessageDifferencer::Equals(back.spec, spec)) << text;
    }
  }
}

void ExpectAnAnswer(const std::string& text) {
  const SpecText result = ParseSpec(text, "f");
  for (const LocatedViolation& located : result.violations) {
    ASSERT_GT(located.place.line, 0) << text;
    ASSERT_GT(located.place.column, 0) << text;
    ASSERT_FALSE(located.violation.reason.empty()) << text;
  }
  if (!result.violations.empty()) return;
  const SpecText again = ParseSpec(ToYaml(result.spec), "f");
  ASSERT_TRUE(again.violations.empty()) << text;
  ASSERT_TRUE(MessageDifferencer::Equals(again.spec, result.spec)) << text;
}

TEST(SpecText, HandlesEveryTruncation) {
  const std::string good = kGood;
  for (size_t size = 0; size < good.size(); ++size) ExpectAnAnswer(good.substr(0, size));
}

TEST(SpecText, HandlesEveryMutation) {
  std::mt19937 random(7);
  const std::string good = kGood;
  const std::string pieces = "{}[]:,#&*!|>'\"%@`-? \n\t\x00\x80\xff~0.e+<";
  for (int round = 0; round < Seeds(3000); ++round) {
    std::string text = good;
    for (int edits = 1 + random() % 4; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const char c = pieces[random() % pieces.size()];
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1, c);
          break;
        default:
          text.erase(at, 1 + random() % 8);
      }
      if (text.empty()) text = "x";
    }
    ExpectAnAnswer(text);
  }
}

TEST(SpecText, SuggestsValueForSynonym) {
  EXPECT_EQ(ViolationsOf("resources: {device: gpu}"),
            "f:1:21: error: 'gpu' is not a value of resources.device; did you mean cuda? [unknown_value]\n");
  // A different size is not a typo.
  EXPECT_EQ(ViolationsOf("precision: {compute: fp4}"),
            "f:1:22: error: 'fp4' is not a value of precision.compute; write one of fp32, bf16, fp16, fp8 "
            "[unknown_value]\n");
  EXPECT_EQ(
      ViolationsOf("precision: {compute: FP32}"),
      "f:1:22: error: 'FP32' is not a value of precision.compute; did you mean fp32? [unknown_value]\n");
}

// Regression: the list included fp16 and fp8, which validation rejects here.
TEST(SpecText, ListsValidEnumValues) {
  EXPECT_EQ(ViolationsOf("precision: {main_grads: fp4}"),
            "f:1:25: error: 'fp4' is not a value of precision.main_grads; write one of fp32, bf16 "
            "[unknown_value]\n");
  EXPECT_EQ(ViolationsOf("precision: {main_grads: half}"),
            "f:1:25: error: 'half' is not a value of precision.main_grads; write one of fp32, bf16 "
            "[unknown_value]\n");
  EXPECT_EQ(ViolationsOf("precision: {main_grads: fp16}"), "") << "a validation rule rejects it";
}

TEST(SpecText, ReturnsUnreadFields) {
  const SpecText text = ParseSpec(
      "train: {stpes: 3, seed: x}\nlr: 1\noptimizer: {adamw: {betas: [0.9, y]}}\n"
      "fsdp: {strategy: zero9}\nresources: {zzzzzzzz: 1}\n",
      "f");
  EXPECT_TRUE(text.is_tree);
  EXPECT_EQ(text.unparsed, (std::vector<std::string>{"train.steps", "train.seed", "optimizer.adamw.lr",
                                                     "optimizer.adamw.betas", "fsdp.strategy"}));
  EXPECT_FALSE(ParseSpec("train: [", "f").is_tree);
  EXPECT_FALSE(ParseSpec("- a", "f").is_tree);
}

}  // namespace
}  // namespace fsdpd

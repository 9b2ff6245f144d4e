#include "client/migrate/field_origins.h"

#include <absl/strings/str_cat.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>

#include "client/migrate/megatron_job.h"
#include "client/migrate/megatron_rules.h"
#include "fsdp/plan/rules/rules.h"

namespace fsdpd {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr char kLlama[] =
    "--use-megatron-fsdp --num-layers 2 --hidden-size 64 --num-attention-heads 4 --ffn-hidden-size 128 "
    "--swiglu "
    "--group-query-attention --num-query-groups 2 --kv-channels 16 --max-position-embeddings 64 "
    "--qk-layernorm "
    "--rotary-base 500000 --norm-epsilon 1e-5 --untie-embeddings-and-output-weights --add-qkv-bias "
    "--use-rope-scaling --rope-scaling-factor 8 "
    "--normalization RMSNorm --position-embedding-type rope --disable-bias-linear --vocab-size 256 "
    "--seq-length 64 --attention-dropout 0 --hidden-dropout 0 --train-iters 9 --lr 1e-3 --fp16 "
    "--initial-loss-scale 1024 --loss-scale-window 10 --data-path /a --valid-data-path /b --eval-interval 3 "
    "--eval-iters 2 --micro-batch-size 1 --global-batch-size 8 --clip-grad 1 --seed 1 --adam-beta1 0.9 "
    "--adam-beta2 0.95 --adam-eps 1e-8 --weight-decay 0.1 --min-lr 1e-4 --lr-warmup-iters 1 "
    "--init-method-std 0.02 --embedding-init-method-std 0.02 --decoupled-lr 1e-3 "
    "--data-parallel-sharding-strategy optim_grads_params --suggested-communication-unit-size 1000 "
    "--recompute-granularity full --recompute-method block --recompute-num-layers 1 "
    "--optimizer-cpu-offload --cpu-offloading --cpu-offloading-num-layers 1 "
    "--num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim "
    "--save /c --save-interval 2 "
    "--load /d --tensor-model-parallel-size 1 --context-parallel-size 1 --expert-model-parallel-size 1 "
    "--deterministic-mode --pipeline-model-parallel-size 1 --exp-avg-dtype fp32 "
    "--megatron-fsdp-main-params-dtype fp32 "
    "--megatron-fsdp-main-grads-dtype fp32 --megatron-fsdp-grad-comm-dtype fp32 "
    "torchrun --nnodes 1 --nproc-per-node 8 ";

struct Result {
  Settings settings;
  v1::JobSpec job;
  LocatedViolations violations;  // Includes violations of the spec's rules.

  explicit Result(const std::string& text) {
    EXPECT_TRUE(ReadSettings(text, "in", &settings).empty());
    violations = CheckMegatron(&settings);
    const LocatedViolations more = ConvertMegatronJob(&settings, {}, "in", &job);
    violations.insert(violations.end(), more.begin(), more.end());
    for (const Violation& violation : CheckJob(job, UnreadFields(violations))) {
      violations.push_back(AtOrigin(violation, "in", &settings));
    }
  }

  std::string All() const {
    std::string all;
    for (const LocatedViolation& located : violations) {
      if (located.violation.level == ViolationLevel::kError) absl::StrAppend(&all, Render(located), "\n");
    }
    return all;
  }
};

// Paths of all fields that are set, such as "data.tokens[0].path".
void AddSet(const Message& message, const std::string& path, std::vector<std::string>* fields) {
  std::vector<const FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  for (const FieldDescriptor* field : set) {
    const std::string name = absl::StrCat(path, path.empty() ? "" : ".", field->name());
    const auto& reflection = *message.GetReflection();
    const int size = field->is_repeated() ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < size; ++i) {
      const std::string each = field->is_repeated() ? absl::StrCat(name, "[", i, "]") : name;
      if (field->message_type() == nullptr) {
        fields->push_back(each);
      } else if (field->is_repeated()) {
        AddSet(reflection.GetRepeatedMessage(message, field, i), each, fields);
      } else {
        AddSet(reflection.GetMessage(message, field), each, fields);
      }
    }
  }
}

TEST(FieldOrigins, CoversEveryConvertedField) {
  for (const std::string style :
       {"--lr-decay-style constant", "--lr-decay-style linear", "--lr-decay-style cosine",
        "--lr-decay-style WSD --lr-wsd-decay-iters 3", "--optimizer sgd",
        "--num-experts 4 --moe-aux-loss-coeff 0.1 --moe-router-enable-expert-bias "
        "--moe-router-score-function sigmoid",
        "--multi-latent-attention --kv-lora-rank 8 --rotary-scaling-factor 2"}) {
    Result result(kLlama + style);
    std::vector<std::string> fields;
    AddSet(result.job, "", &fields);
    for (const std::string& field : fields) {
      // No setting: the first comes from migrate's own flag, the second is always CUDA, and momentum is a
      // default.
      if (field == "name" || field == "resources.device" || field == "optimizer.sgd.momentum") continue;
      const Setting* origin = OriginOf(field, &result.settings);
      ASSERT_NE(origin, nullptr) << field << " with " << style;
      EXPECT_GT(origin->place.line, 0) << field;
    }
  }
}

TEST(FieldOrigins, NamesOnlyFieldsOfSpec) {
  std::vector<std::string> origins;
  for (const Trainer trainer : kTrainers) {
    for (const FieldRow& row : TableOf(trainer).fields) origins.push_back(row.path);
  }
  for (const std::string& origin : origins) {
    const Descriptor* type = v1::JobSpec::descriptor();
    const FieldDescriptor* field = nullptr;
    const std::regex name("[a-z0-9_]+(\\[[0-9]\\])?");
    for (std::sregex_iterator it(origin.begin(), origin.end(), name), end; it != end; ++it) {
      ASSERT_NE(type, nullptr) << origin;
      field = type->FindFieldByName(it->str().substr(0, it->str().find('[')));
      ASSERT_NE(field, nullptr) << origin;
      type = field->message_type();
    }
  }
}

// Regression: such violations had no file and no place, and did not name the argument to change.
TEST(FieldOrigins, PlacesSpecViolationsAtArguments) {
  const std::string all =
      Result(kLlama + std::string("\n--adam-beta1 2 --micro-batch-size 3\n--data-path a\n--save runs")).All();
  EXPECT_NE(all.find("in:2:1: error: --adam-beta1: becomes optimizer.adamw.betas[0]: the decay rate is 2 "),
            std::string::npos)
      << all;
  EXPECT_NE(all.find(": error: --global-batch-size: becomes train.global_batch: "), std::string::npos) << all;
  EXPECT_NE(all.find("in:3:1: error: --data-path: becomes data.tokens[0].path: 'a' is a relative path"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("in:4:1: error: --save: becomes checkpoint.dir: 'runs' is a relative path"),
            std::string::npos)
      << all;
}

// Regression: the first `$TP` hid all other errors.
TEST(FieldOrigins, ReportsOtherErrorsNextToShellVariables) {
  const std::string all =
      Result(kLlama + std::string("\n--tensor-model-parallel-size $TP --adam-beta1 2\n--seq-length ${SEQ} "
                                  "--use-tp-pp-dp-mapping --lr=\"$LR\" --optimizer lion"))
          .All();
  EXPECT_NE(all.find("in:2:30: error: --tensor-model-parallel-size: the value of $TP is not in this text"),
            std::string::npos)
      << all;
  EXPECT_NE(all.find("in:3:14: error: --seq-length: the value of $SEQ is not"), std::string::npos) << all;
  EXPECT_NE(all.find("error: --lr: the value of $LR is not"), std::string::npos) << all;
  EXPECT_NE(all.find("in:2:34: error: --adam-beta1: "), std::string::npos) << all;
  EXPECT_NE(all.find("[rank_order]"), std::string::npos) << all;
  EXPECT_NE(all.find("[optimizer_known]"), std::string::npos) << all;
  for (const char* consequence : {"sequence_length_range", "parallel_tensor", "[required]", "lr_positive"}) {
    EXPECT_EQ(all.find(consequence), std::string::npos) << all;
  }
}

// An unexpanded array may contain any argument, so a missing argument is not an error.
TEST(FieldOrigins, AssumesUnexpandedArraysSetRequiredArguments) {
  const std::string all =
      Result("torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${MODEL_ARGS[@]} --swiglu --adam-beta1 2")
          .All();
  EXPECT_NE(all.find("the value of $DISTRIBUTED_ARGS is not in this text"), std::string::npos) << all;
  EXPECT_NE(all.find("the value of $MODEL_ARGS is not in this text"), std::string::npos) << all;
  EXPECT_NE(all.find("error: --adam-beta1: "), std::string::npos) << all;
  for (const char* absent : {"[required]", "model_family"}) {
    EXPECT_EQ(all.find(absent), std::string::npos) << all;
  }
}

// Regression: products of input values overflowed int64, and messages had negative numbers.
TEST(FieldOrigins, DoesNotOverflowOnHugeNumbers) {
  const std::regex flag("--[a-z0-9-]+ [0-9][0-9.e-]*"), negative("(^|[^\\w.])-[0-9]");
  const std::string base = kLlama;
  int reported = 0;
  for (std::sregex_iterator it(base.begin(), base.end(), flag), end; it != end; ++it) {
    const std::string name = it->str().substr(0, it->str().find(' '));
    for (const char* value : {"1e30", "9e15", "1e308", "0", "9007199254740992", "99999999999999999999"}) {
      for (const char* more :
           {"", " --eval-iters 9e15 --global-batch-size 9e15", " --nnodes 9223372036854775807",
            " --tensor-model-parallel-size 9e15 --lr-warmup-fraction 1e300"}) {
        for (const LocatedViolation& located :
             Result(absl::StrCat(base, more, " ", name, " ", value)).violations) {
          ++reported;
          EXPECT_FALSE(std::regex_search(located.violation.fix, negative))
              << name << " " << value << ": " << Render(located);
          EXPECT_FALSE(std::regex_search(located.violation.reason, negative))
              << name << " " << value << more << ": " << Render(located);
        }
      }
    }
  }
  EXPECT_GT(reported, 1000);
}

// Regression: errors about precision.compute were reported at `bf16: false`.
TEST(FieldOrigins, PlacesPrecisionAtEnabledFlagOrRecipe) {
  for (const auto& [text, origin] : std::map<std::string, std::string>{
           {"model: {bf16: false, fp16: true}\noptimizer: {fp16: false}", "model.fp16"},
           {"mixed_precision: fp16_mixed\nmodel: {bf16: true}", "mixed_precision"}}) {
    Settings settings;
    ASSERT_TRUE(ReadSettings(text, "in", &settings).empty());
    const Setting* found = OriginOf("precision.compute", &settings);
    ASSERT_NE(found, nullptr) << text;
    EXPECT_EQ(found->written, origin);
  }
}

}  // namespace
}  // namespace fsdpd

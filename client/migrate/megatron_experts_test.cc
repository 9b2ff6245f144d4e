#include "client/migrate/megatron_experts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Experts = v1::Llama::Experts;

struct Result {
  v1::JobSpec job;
  std::vector<std::string> reported;  // "error expert_layers", "adjust router_in_fp32".

  explicit Result(const std::string& arguments) {
    Settings settings;
    EXPECT_TRUE(
        ReadSettings("--num-experts 8 --moe-router-dtype fp32 " + arguments, "in", &settings).empty());
    SpecConversion conversion(&settings, "in", &job);
    v1::Llama* llama = job.mutable_model()->mutable_llama();
    llama->set_layers(6);
    ConvertExperts(&conversion, llama);
    for (const LocatedViolation& located : conversion.violations) {
      reported.push_back((located.violation.level == ViolationLevel::kError ? "error " : "adjust ") +
                         located.violation.rule);
    }
  }
  const Experts& experts() const { return job.model().llama().experts(); }
};

std::vector<int> Pattern(const std::string& text) {
  return ReadLayerPattern(text).value_or(std::vector<int>{-1});
}

TEST(LayerPattern, EvaluatesPythonListExpressions) {
  EXPECT_THAT(Pattern("[0]*3+[1]*2"), ElementsAre(0, 0, 0, 1, 1));
  EXPECT_THAT(Pattern(" ( [1]*2 + [0] ) * 2 "), ElementsAre(1, 1, 0, 1, 1, 0));
  EXPECT_THAT(Pattern("[0 , 1]*2*2"), ElementsAre(0, 1, 0, 1, 0, 1, 0, 1));
  EXPECT_THAT(Pattern("[1]*0"), IsEmpty());
  for (const char* wrong : {"", "1", "[]", "[2]", "[1", "[1]]", "[1]*", "[1]*-1", "[1]+", "([1]", "3*[1]",
                            "[1][1]", "[1]*100001", "[1]*99999999999999999999", "[1]*1000*1000"}) {
    EXPECT_THAT(Pattern(wrong), ElementsAre(-1)) << wrong;
  }
  EXPECT_THAT(Pattern(std::string(100000, '(')), ElementsAre(-1)) << "no stack overflow";
}

TEST(MegatronExperts, WritesNoExpertsForDenseModel) {
  Settings settings;
  v1::JobSpec job;
  ASSERT_TRUE(ReadSettings("--moe-router-topk 2 --moe-aux-loss-coeff 0.1", "in", &settings).empty());
  SpecConversion conversion(&settings, "in", &job);
  ConvertExperts(&conversion, job.mutable_model()->mutable_llama());
  EXPECT_FALSE(job.model().llama().has_experts());
}

TEST(MegatronExperts, ConvertsSoftmaxOrder) {
  const Result chosen("");
  EXPECT_THAT(chosen.reported, IsEmpty());
  EXPECT_EQ(chosen.experts().per_token(), 2);
  EXPECT_TRUE(chosen.experts().normalized());
  EXPECT_FALSE(Result("--moe-router-pre-softmax").experts().normalized());
  EXPECT_TRUE(Result("--moe-router-score-function sigmoid").experts().normalized());
  EXPECT_FALSE(Result("--moe-router-score-function sigmoid --moe-router-topk 1").experts().normalized());
  EXPECT_THAT(Result("--moe-router-score-function sqrtsoftplus").reported,
              ElementsAre("error expert_scores"));
}

TEST(MegatronExperts, AcceptsOnlyLeadingDenseLayers) {
  EXPECT_EQ(Result("--moe-layer-freq [0]*2+[1]*4").experts().dense_layers(), 2);
  EXPECT_EQ(Result("--moe-layer-freq 1").experts().dense_layers(), 0);
  for (const char* wrong : {"2", "[1]*3+[0]*3", "[0]*6", "[0]*2+[1]*3", "[0,1]*3", "every"}) {
    EXPECT_THAT(Result(std::string("--moe-layer-freq ") + wrong).reported, ElementsAre("error expert_layers"))
        << wrong;
  }
}

TEST(MegatronExperts, ConvertsGroupScores) {
  const std::string sigmoid = "--moe-router-score-function sigmoid --moe-router-num-groups 4 ";
  const Result same(sigmoid + "--moe-router-topk 4 --moe-router-group-topk 2");
  EXPECT_THAT(same.reported, IsEmpty());
  EXPECT_EQ(same.experts().groups(), 4);
  EXPECT_EQ(same.experts().groups_per_token(), 2);
  EXPECT_NE(same.experts().group_scores(), v1::Llama::Experts::GROUP_SCORES_BEST);
  const Result by_one(sigmoid + "--moe-router-topk 2 --moe-router-group-topk 2");
  EXPECT_THAT(by_one.reported, IsEmpty());
  EXPECT_EQ(by_one.experts().group_scores(), v1::Llama::Experts::GROUP_SCORES_BEST);
  for (const char* wrong :
       {"--moe-router-topk 6 --moe-router-group-topk 2", "--moe-router-topk 3 --moe-router-group-topk 2",
        "--moe-router-topk 2 --moe-router-group-topk 4", "--moe-router-topk 2"}) {
    EXPECT_THAT(Result(sigmoid + wrong).reported, ElementsAre("error expert_groups")) << wrong;
  }
  EXPECT_THAT(Result("--moe-router-topk 2 --moe-router-group-topk 2").reported,
              ElementsAre("error expert_groups"));
  EXPECT_THAT(Result("--moe-router-num-groups 4 --moe-router-topk 4 --moe-router-group-topk 2").reported,
              ElementsAre("error expert_groups"))
      << "by logits";
}

TEST(MegatronExperts, ConvertsBalanceLossToPerSample) {
  const std::string loss = "--moe-aux-loss-coeff 0.25 --moe-router-load-balancing-type ";
  EXPECT_EQ(Result(loss + "seq_aux_loss --micro-batch-size 4").experts().balance_loss(), 0.25);
  EXPECT_THAT(Result(loss + "seq_aux_loss --micro-batch-size 4").reported, IsEmpty());
  EXPECT_THAT(Result(loss + "aux_loss").reported, IsEmpty()) << "a micro-batch is a sample";
  EXPECT_THAT(Result(loss + "aux_loss --micro-batch-size 4").reported,
              ElementsAre("adjust expert_balance_by_sample"));
  EXPECT_THAT(Result(loss + "global_aux_loss").reported, ElementsAre("adjust expert_balance_by_sample"));
  EXPECT_EQ(Result(loss + "none").experts().balance_loss(), 0);
  EXPECT_THAT(Result(loss + "sinkhorn").reported, ElementsAre("error expert_balance"));
  EXPECT_THAT(Result(loss + "aux_loss seq_aux_loss").reported, ElementsAre("error expert_balance"));
  EXPECT_EQ(Result("--moe-z-loss-coeff 0.5").experts().z_loss(), 0.5);
}

TEST(MegatronExperts, AdjustsRouterDtypeAndForcedBalance) {
  const Result biased("--moe-router-score-function sigmoid --moe-router-enable-expert-bias");
  EXPECT_TRUE(biased.experts().selection_bias());
  EXPECT_EQ(biased.experts().bias_update_rate(), 1e-3) << "Megatron's default";
  EXPECT_THAT(Result("--moe-router-force-load-balancing").reported, ElementsAre("adjust router_chooses"));
  EXPECT_THAT(Result("--moe-router-dtype fp64").reported, ElementsAre("adjust router_in_fp32"));
}

}  // namespace
}  // namespace fsdpd

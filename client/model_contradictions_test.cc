#include "client/model_contradictions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(Contradictions, EachFieldIsNamed) {
  LlamaConfig a, b;
  a.heads = 4;
  b.heads = 2;
  a.norm_epsilon = 1e-5;
  b.norm_epsilon = 1e-6;
  a.tied_embeddings = true;
  b.positions = 128;
  EXPECT_THAT(Contradictions(a, b),
              ElementsAre("heads is 2 there, and 4 in the checkpoint",
                          "norm_epsilon is 1e-06 there, and 1e-05 in the checkpoint",
                          "tied_embeddings is false there, and true in the checkpoint"));
  EXPECT_THAT(Contradictions(a, a), IsEmpty());
}

TEST(Contradictions, ScalingOfPositionsMattersWhereThereIsSome) {
  LlamaConfig a, b;
  b.rope_scaling.low_freq_factor = 2;
  EXPECT_THAT(Contradictions(a, b), IsEmpty());
  a.rope_scaling.factor = b.rope_scaling.factor = 8;
  EXPECT_THAT(Contradictions(a, b), SizeIs(1));
}

TEST(Contradictions, PositionsAreParametersOfGpt2) {
  Gpt2Config a, b;
  b.positions = 128;
  EXPECT_THAT(Contradictions(a, b), SizeIs(1));
  EXPECT_THAT(Contradictions(a, LlamaConfig()),
              ElementsAre("the family is llama there, and gpt2 in the checkpoint"));
}

}  // namespace
}  // namespace fsdpd

#include "fsdp/checkpoint/names/base_label.h"

#include <gtest/gtest.h>

namespace fsdpd {
namespace {

TEST(BaseLabel, ReadsItsText) {
  const BaseLabel label = ParseBaseLabel(BaseLabel{"bf16", "0123456789abcdef", "/models/my llama"}.Text());
  EXPECT_EQ(label.type, "bf16");
  EXPECT_EQ(label.hash, "0123456789abcdef");
  EXPECT_EQ(label.path, "/models/my llama");
  EXPECT_EQ((BaseLabel{"fp32", "0123456789abcdef", ""}).Text(), "fp32 0123456789abcdef");
}

TEST(BaseLabel, MissingFieldsAreEmpty) {
  EXPECT_TRUE(ParseBaseLabel("").empty());
  const BaseLabel label = ParseBaseLabel("fp32");
  EXPECT_FALSE(label.empty());
  EXPECT_EQ(label.hash + label.path, "");
}

}  // namespace
}  // namespace fsdpd

#include "coordinator/request/list_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdpd {
namespace {

using ::testing::HasSubstr;

TEST(ListOrder, ParsesFieldAndDirection) {
  const auto order = [](const std::string& text) {
    return ParseListOrder(text, {"name", "size"}, {1, true});
  };
  EXPECT_EQ(order("")->field, 1u);
  EXPECT_TRUE(order(" ")->descending);
  EXPECT_EQ(order("name")->field, 0u);
  EXPECT_FALSE(order("name")->descending);
  EXPECT_FALSE(order("size asc")->descending);
  EXPECT_TRUE(order(" size  desc ")->descending);
  EXPECT_TRUE(order("size DESC")->descending);
  EXPECT_FALSE(order("size Asc")->descending);
  const auto why = [&](const std::string& text) { return std::string(order(text).status().message()); };
  EXPECT_EQ(why("colour"), "order_by: at offset 0: unknown field 'colour'; the fields are name, size");
  EXPECT_EQ(why("size up"), "order_by: at offset 5: 'up' is neither asc nor desc");
  EXPECT_EQ(why("size desc name"),
            "order_by: at offset 10: unexpected 'name'; lists are ordered by one field");
  EXPECT_EQ(why("size, name"), "order_by: at offset 0: unknown field 'size,'; the fields are name, size");
}

TEST(ListOrder, RejectsFilterWithItsReplacements) {
  EXPECT_TRUE(RejectFilter("").ok());
  EXPECT_THAT(std::string(RejectFilter("state = RUNNING").message()),
              HasSubstr("filter: is not supported after release 0.1; use the other fields"));
}

}  // namespace
}  // namespace fsdpd

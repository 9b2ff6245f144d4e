#include "base/spec_text/enum_name.h"

#include <google/protobuf/type.pb.h>
#include <gtest/gtest.h>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {
namespace {

TEST(EnumName, RemovesThePrefix) {
  EXPECT_EQ(ShortEnumName(v1::STRATEGY_OPTIM_GRADS_PARAMS), "optim_grads_params");
  EXPECT_EQ(ShortEnumName(v1::DEVICE_UNSPECIFIED), "unspecified");
}

TEST(EnumName, KeepsNamesWithoutPrefix) {
  EXPECT_EQ(ShortEnumName(google::protobuf::Field::TYPE_DOUBLE), "type_double");
}

TEST(EnumName, UnknownValueIsANumber) { EXPECT_EQ(ShortEnumName(static_cast<v1::Device>(77)), "#77"); }

}  // namespace
}  // namespace fsdpd

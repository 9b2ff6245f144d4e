#include "base/spec_text/renamed_fields.h"

#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "proto/fsdpd/v1/job.pb.h"

namespace fsdpd {
namespace {

TEST(RenamedFields, SpecHasNewNamesOnly) {
  const auto* const file = v1::JobSpec::descriptor()->file();
  for (const RenamedField& field : RenamedFields()) {
    const auto* message = file->pool()->FindMessageTypeByName("fsdpd.v1." + field.message);
    ASSERT_NE(message, nullptr) << field.message;
    EXPECT_NE(message->FindFieldByName(field.name), nullptr) << field.name;
    EXPECT_EQ(message->FindFieldByName(field.before), nullptr) << field.before;
  }
}

TEST(RenamedFields, FindsNameInBothSpellings) {
  EXPECT_EQ(CurrentFieldName("fsdpd.v1.Data", "ignored_token"), "ignore_index");
  EXPECT_EQ(CurrentFieldName("fsdpd.v1.Data", "ignoredToken"), "ignore_index");
  EXPECT_EQ(CurrentFieldName("fsdpd.v1.Train", "ignored_token"), "") << "another message";
  EXPECT_EQ(CurrentFieldName("fsdpd.v1.Data", "ignore_index"), "");
}

TEST(RenamedFields, ReplacesKeysButNotValues) {
  EXPECT_EQ(WithCurrentFieldNames(R"({"name":"borrows","units":[{"borrows":"a","kept_values": "12"}]})"),
            R"({"name":"borrows","units":[{"tied_to":"a","saved_values": "12"}]})");
  EXPECT_EQ(WithCurrentFieldNames(R"({"args":"{\"deviation\":1}"})"), R"({"args":"{\"deviation\":1}"})");
}

}  // namespace
}  // namespace fsdpd

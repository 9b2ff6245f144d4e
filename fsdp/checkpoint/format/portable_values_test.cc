#include "fsdp/checkpoint/format/portable_values.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>

namespace fsdpd {
namespace {

Pickle PickledBy(const std::function<void(PickleWriter*)>& write) {
  PickleWriter writer;
  write(&writer);
  absl::StatusOr<Pickle> pickle = Pickle::Parse(writer.Take());
  EXPECT_TRUE(pickle.ok()) << pickle.status();
  return *std::move(pickle);
}

TEST(PortableValues, RoundTrip) {
  const auto write = [](PickleWriter* writer) {
    writer->BeginList();
    writer->None();
    writer->Bool(true);
    writer->Int(-5);
    writer->Float(0.25);
    writer->Text("grüß");
    writer->BeginList();
    writer->Int(int64_t{1} << 40);
    writer->Appends();
    writer->Appends();
  };
  const std::optional<PortableValue> kept = ToPortable(PickledBy(write).root());
  ASSERT_TRUE(kept.has_value());
  PickleWriter expected, again;
  write(&expected);
  WritePortable(*kept, &again);
  EXPECT_EQ(again.Take(), expected.Take());
}

TEST(PortableValues, OtherKindsAreNullopt) {
  EXPECT_FALSE(ToPortable(PickledBy([](PickleWriter* writer) { writer->Class("os", "system"); }).root()));
  EXPECT_FALSE(ToPortable(PickledBy([](PickleWriter* writer) {
                            writer->BeginDict();
                            writer->SetItems();
                          }).root()));
  PickleValue text;
  text.kind = PickleKind::kString;
  text.text = "\xff";
  EXPECT_FALSE(ToPortable(text)) << "no UTF-8";
}

// A few values that expand to a tree of 10^7.
TEST(PortableValues, LimitsSharedTree) {
  PickleValue lists[8];
  for (int depth = 0; depth < 8; ++depth) {
    lists[depth].kind = PickleKind::kList;
    if (depth > 0) lists[depth].items.assign(10, &lists[depth - 1]);
  }
  EXPECT_FALSE(ToPortable(lists[7]));
  EXPECT_TRUE(ToPortable(lists[3]));
}

TEST(PortableValues, FindsCountsAndTextsByName) {
  const PortableValues values = {{"a", {int64_t{3}}}, {"b", {std::string("x")}}, {"c", {int64_t{-1}}}};
  EXPECT_EQ(PortableCount(values, "a"), 3);
  EXPECT_EQ(PortableText(values, "b"), "x");
  for (const char* name : {"b", "c", "d"}) EXPECT_FALSE(PortableCount(values, name)) << name;
  EXPECT_FALSE(PortableText(values, "a"));
}

}  // namespace
}  // namespace fsdpd

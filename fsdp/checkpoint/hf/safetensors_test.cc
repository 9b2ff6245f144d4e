#include "fsdp/checkpoint/hf/safetensors.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/check.h"

namespace fsdpd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& head, const std::string& numbers) {
  const uint64_t length = head.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + head + numbers;
}

absl::StatusOr<std::vector<SafetensorsEntry>> Read(const std::string& file) {
  FSDPD_ASSIGN_OR_RETURN(SafetensorsContents contents,
                         InspectSafetensors(static_cast<int64_t>(file.size()), ReadAtOf(file)));
  FSDPD_RETURN_IF_ERROR(contents.first);
  return std::move(contents.entries);
}

std::string ErrorOf(const std::string& head, const std::string& numbers = "") {
  const auto read = Read(FileOf(head, numbers));
  EXPECT_TRUE(absl::IsDataLoss(read.status()) || absl::IsUnimplemented(read.status())) << read.status();
  return std::string(read.status().message());
}

TEST(Safetensors, RoundTripsLayout) {
  std::vector<SafetensorsEntry> tensors = {{"w", FindTensorType("float32"), {2, 3}, 0, 24},
                                           {"a \"quoted\" name", FindTensorType("bfloat16"), {5}, 0, 10},
                                           {"none", FindTensorType("int64"), {0, 4}, 0, 0},
                                           {"scalar", FindTensorType("bool"), {}, 0, 1}};
  const std::string head = LayOutSafetensors(&tensors);
  EXPECT_EQ(head.size() % 8, 0u);
  EXPECT_EQ(tensors[0].begin, static_cast<int64_t>(head.size()));
  const auto read = Read(head + std::string(35, 'x'));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), 4u);
  for (const SafetensorsEntry& entry : *read) {
    const auto wrote = std::find_if(tensors.begin(), tensors.end(), [&](const SafetensorsEntry& tensor) {
      return tensor.name == entry.name;
    });
    ASSERT_NE(wrote, tensors.end()) << entry.name;
    EXPECT_EQ(entry.type, wrote->type);
    EXPECT_EQ(entry.shape, wrote->shape);
    EXPECT_EQ(entry.bytes, wrote->bytes);
    EXPECT_EQ(entry.begin, wrote->begin);
  }
}

TEST(Safetensors, RejectsHeaderBeyondFile) {
  EXPECT_FALSE(Read("1234567").ok());
  std::string file = FileOf("{}", "");
  EXPECT_TRUE(Read(file).ok()) << "a file without tensors";
  file[0] = 3;
  EXPECT_FALSE(Read(file).ok());
  file[7] = '\x80';
  EXPECT_FALSE(Read(file).ok()) << "a length that is negative where it is signed";
  const std::string large(kMaxSafetensorsHeadBytes + 1, ' ');
  EXPECT_THAT(ErrorOf(large), HasSubstr("too large"));
}

TEST(Safetensors, RequiresEveryByteInOneTensor) {
  const auto entry = [](int begin, int end) {
    return absl::StrCat(R"({"dtype":"U8","shape":[)", end - begin, R"(],"data_offsets":[)", begin, ",", end,
                        "]}");
  };
  const auto both = [&](const std::string& a, const std::string& b) {
    return absl::StrCat(R"({"a":)", a, R"(,"b":)", b, "}");
  };
  EXPECT_TRUE(Read(FileOf(both(entry(0, 2), entry(2, 5)), "12345")).ok());
  EXPECT_TRUE(Read(FileOf(both(entry(2, 5), entry(0, 2)), "12345")).ok()) << "in any order";
  EXPECT_EQ(ErrorOf(both(entry(0, 2), entry(3, 5)), "12345"), "b: unused bytes before its data: 1 byte");
  EXPECT_EQ(ErrorOf(both(entry(0, 3), entry(2, 5)), "12345"), "b: 1 byte of its data overlap a");
  EXPECT_EQ(ErrorOf(both(entry(0, 5), entry(2, 4)), "12345"), "b: 2 bytes of its data overlap a");
  EXPECT_THAT(ErrorOf(both(entry(0, 2), entry(2, 5)), "123456"), HasSubstr("after the header: 6"));
  EXPECT_EQ(ErrorOf(both(entry(0, 2), entry(2, 5)), "1234"),
            "b: data ends at byte 5 after the header, but the file ends at 4");
}

TEST(Safetensors, RequiresMatchingShapeAndBytes) {
  const auto head = [](const char* dtype, const char* shape, const char* offsets) {
    return absl::StrCat(R"({"w":{"dtype":)", dtype, R"(,"shape":)", shape, R"(,"data_offsets":)", offsets,
                        "}}");
  };
  const std::string four = "1234";
  EXPECT_TRUE(Read(FileOf(head("\"F32\"", "[1]", "[0,4]"), four)).ok());
  EXPECT_THAT(ErrorOf(head("\"F32\"", "[2]", "[0,4]"), four), HasSubstr("w: has 4 bytes"));
  EXPECT_THAT(ErrorOf(head("\"F4\"", "[1]", "[0,4]"), four), HasSubstr("unsupported dtype F4"));
  for (const char* shape : {"[-1]", "[1.5]", "[\"1\"]", "1", "[1e300]", "[4294967296,4294967296]", "null"}) {
    EXPECT_THAT(ErrorOf(head("\"F32\"", shape, "[0,4]"), four), HasSubstr("w: ")) << shape;
  }
  for (const char* offsets : {"[4,0]", "[0]", "[0,4,8]", "[-4,0]", "[0.5,4.5]", "{}"}) {
    EXPECT_THAT(ErrorOf(head("\"F32\"", "[1]", offsets), four), HasSubstr("w: ")) << offsets;
  }
  EXPECT_THAT(ErrorOf(R"({"w":3})", four), HasSubstr("w: is not an object"));
  EXPECT_THAT(ErrorOf(R"({"w":{}})", four), HasSubstr("w: has no dtype"));
}

TEST(Safetensors, LookIntoReportsAllViolations) {
  const std::string head =
      R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"F4","shape":[4],"data_offsets":[3,5]},)"
      R"("c":{"dtype":"U8","shape":[7],"data_offsets":[4,6]},"d":{"dtype":"U8","shape":[9],"data_offsets":[6,15]},)"
      R"("e":7})";
  const std::string file = FileOf(head, "123456");
  const auto found = InspectSafetensors(static_cast<int64_t>(file.size()), ReadAtOf(file));
  ASSERT_TRUE(found.ok()) << found.status();
  std::vector<std::string> violations;
  for (const DcpViolation& violation : found->violations)
    violations.push_back(violation.where + ": " + violation.what);
  EXPECT_THAT(violations,
              ElementsAre("b: unsupported dtype F4", "c: has 2 bytes, which do not match [7] of type uint8",
                          "e: is not an object", "b: unused bytes before its data: 1 byte",
                          "c: 1 byte of its data overlap b",
                          "d: data ends at byte 15 after the header, but the file ends at 6"));
  EXPECT_TRUE(absl::IsUnimplemented(found->first)) << found->first;
  ASSERT_EQ(found->entries.size(), 3u) << "those whose place is within the file";
  EXPECT_EQ(found->entries[1].type_name, "F4");
  EXPECT_EQ(found->entries[1].begin, found->head_bytes + 3);
}

TEST(Safetensors, RejectsInvalidHeader) {
  for (const char* head : {"", "[]", "{", " {}", "null", "{\"a\":}", "{\"\xff\":1}"}) {
    EXPECT_THAT(ErrorOf(head), HasSubstr("not a JSON object")) << head;
  }
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_THAT(ErrorOf(deep), HasSubstr("not a JSON object"));
}

// A name with two positions would be ambiguous.
TEST(Safetensors, RejectsDuplicateName) {
  const std::string one = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]})";
  const std::string two = R"("w":{"dtype":"U8","shape":[2],"data_offsets":[2,4]})";
  EXPECT_THAT(ErrorOf(absl::StrCat("{", one, ",", two, "}"), "1234"), HasSubstr("duplicate key"));
}

}  // namespace
}  // namespace fsdpd

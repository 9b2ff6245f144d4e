#include "fsdp/checkpoint/dcp/dcp_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "base/seeds.h"
#include "base/temp_dir.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

// Reference: the elements of `part`, one by one.
std::string Expected(const TestTensor& tensor, const Rectangle& part) {
  std::string numbers;
  std::vector<int64_t> at = part.offsets;
  for (int64_t n = 0; n < part.elements(); ++n) {
    int64_t number = 0;
    for (size_t d = 0; d < at.size(); ++d) number = number * tensor.shape[d] + at[d];
    numbers += tensor.numbers.substr(number * tensor.type->bytes, tensor.type->bytes);
    for (size_t d = at.size(); d > 0; --d) {
      if (++at[d - 1] < part.offsets[d - 1] + part.sizes[d - 1]) break;
      at[d - 1] = part.offsets[d - 1];
    }
  }
  return numbers;
}

Rectangle RandomPart(const std::vector<int64_t>& shape, std::mt19937* random) {
  Rectangle part;
  for (const int64_t size : shape) {
    const int64_t offset = std::uniform_int_distribution<int64_t>(0, size)(*random);
    part.offsets.push_back(offset);
    part.sizes.push_back(std::uniform_int_distribution<int64_t>(0, size - offset)(*random));
  }
  return part;
}

TEST(DcpReader, ReadsAnyRectangleOfAnyPartition) {
  std::mt19937 random(1);
  const std::vector<TestTensor> tensors = {
      MakeTestTensor("line", "int16", {97}), MakeTestTensor("matrix", "float32", {13, 17}),
      MakeTestTensor("cube", "bfloat16", {5, 6, 7}), MakeTestTensor("four", "uint8", {3, 4, 1, 5}),
      MakeTestTensor("wide", "float64", {3, 9000})};
  for (int seed = 0; seed < Seeds(20); ++seed) {
    TempDir dir;
    const int cuts = std::uniform_int_distribution<int>(1, 9)(random);
    ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, cuts)).ok());
    const auto reader = DcpReader::Open(dir.path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    for (const TestTensor& tensor : tensors) {
      const DcpTensor* found = (*reader)->FindTensor(tensor.name);
      ASSERT_NE(found, nullptr);
      for (int i = 0; i < 10; ++i) {
        const Rectangle part = RandomPart(tensor.shape, &random);
        std::string numbers(part.elements() * tensor.type->bytes, '\0');
        const absl::Status status = (*reader)->Read(*found, part, numbers.data());
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(numbers, Expected(tensor, part))
            << tensor.name << ", seed " << seed << ", " << cuts << " files";
      }
    }
  }
}

TEST(DcpReader, ReadsAnyRun) {
  TempDir dir;
  const TestTensor tensor = MakeTestTensor("w", "float32", {7, 11});
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), {tensor}, 3)).ok());
  const auto reader = DcpReader::Open(dir.path());
  const DcpTensor& found = *(*reader)->FindTensor("w");
  for (int64_t begin = 0; begin < 77; begin += 3) {
    for (int64_t elements = 0; elements <= 77 - begin; elements += 5) {
      std::string numbers(elements * 4, '\0');
      ASSERT_TRUE((*reader)->ReadRun(found, begin, elements, numbers.data()).ok());
      EXPECT_EQ(numbers, tensor.numbers.substr(begin * 4, elements * 4));
    }
  }
}

TEST(DcpReader, IsThreadSafe) {
  TempDir dir;
  const std::vector<TestTensor> tensors = SmallTensors();
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), tensors, 4)).ok());
  const auto reader = DcpReader::Open(dir.path());
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (const TestTensor& tensor : tensors) {
        std::string numbers(tensor.numbers.size(), '\0');
        const DcpTensor& found = *(*reader)->FindTensor(tensor.name);
        EXPECT_TRUE(
            (*reader)
                ->Read(found, {std::vector<int64_t>(tensor.shape.size()), tensor.shape}, numbers.data())
                .ok());
        EXPECT_EQ(numbers, tensor.numbers);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(DcpReader, ReadsValuesAndFindsNullForUnknownNames) {
  TempDir dir;
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), SmallTensors(), 2)).ok());
  const auto reader = DcpReader::Open(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_NE((*reader)->FindValue("iteration"), nullptr);
  const auto value = (*reader)->ReadValue(*(*reader)->FindValue("iteration"));
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(value->root().integer, 7);
  EXPECT_EQ((*reader)->FindTensor("iteration"), nullptr);
  EXPECT_EQ((*reader)->FindValue("model.w"), nullptr);
}

TEST(DcpReader, ErrorNamesFileOnce) {
  TempDir dir;
  const TestTensor tensor = MakeTestTensor("w", "float32", {4096});
  ASSERT_TRUE(CommitTestFiles(dir.path(), WriteTestFiles(dir.path(), {tensor}, 1)).ok());
  const auto reader = DcpReader::Open(dir.path());
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string numbers(tensor.numbers.size(), '\0');
  const DcpTensor& found = *(*reader)->FindTensor("w");
  ASSERT_TRUE((*reader)->ReadRun(found, 0, 4096, numbers.data()).ok());
  const std::string path = dir.File("__0_0.distcp");
  ASSERT_EQ(truncate(path.c_str(), 5000), 0);
  const absl::Status shrunk = (*reader)->ReadRun(found, 0, 4096, numbers.data());
  const std::string told(shrunk.message());
  EXPECT_NE(told.find("ends at byte 5000"), std::string::npos) << told;
  EXPECT_EQ(told.find(path), told.rfind(path)) << told;
}

}  // namespace
}  // namespace fsdpd

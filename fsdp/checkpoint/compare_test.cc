#include "fsdp/checkpoint/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>

#include "base/temp_dir.h"
#include "fsdp/checkpoint/hf_store.h"
#include "fsdp/checkpoint/testing/small_checkpoint.h"

namespace fsdpd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TestTensor Floats(const std::string& name, const std::vector<float>& numbers) {
  TestTensor tensor = MakeTestTensor(name, "float32", {static_cast<int64_t>(numbers.size())});
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<float*>(tensor.numbers.data()));
  return tensor;
}

class CompareTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::vector<TestTensor>& tensors, int cuts = 1) {
    std::filesystem::create_directory(dir_.File(name));
    EXPECT_TRUE(CommitTestFiles(dir_.File(name), WriteTestFiles(dir_.File(name), tensors, cuts)).ok());
    return dir_.File(name);
  }

  static Comparison Compared(const std::string& a, const std::string& b) {
    const auto comparison = CompareStores(a, b, 2, [] { return false; });
    EXPECT_TRUE(comparison.ok()) << comparison.status();
    return comparison.ok() ? *comparison : Comparison();
  }

  Difference OnlyDifference(const std::vector<TestTensor>& a, const std::vector<TestTensor>& b) {
    static int number = 0;
    const std::string name = std::to_string(++number);
    const Comparison comparison = Compared(Write("a" + name, a), Write("b" + name, b));
    EXPECT_EQ(comparison.differences.size(), 1u);
    return comparison.differences.empty() ? Difference() : comparison.differences[0];
  }

  TempDir dir_;
};

TEST_F(CompareTest, ChunksDoNotMatter) {
  const Comparison same = Compared(Write("a", SmallTensors(), 1), Write("b", SmallTensors(), 3));
  EXPECT_TRUE(same.differences.empty());
  EXPECT_EQ(same.equal, 6) << "five tensors and the iteration";
}

TEST_F(CompareTest, TheLargestDifferenceIsTold) {
  const Difference found = OnlyDifference({Floats("w", {1, 2, 3, -4})}, {Floats("w", {1, 2.5, 3, 4})});
  EXPECT_EQ(found.name, "w");
  EXPECT_EQ(found.largest, 8);
  EXPECT_EQ(found.numbers, 2);
}

TEST_F(CompareTest, WhatIsNoNumberEqualsItself) {
  const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(Compared(Write("a", {Floats("w", {nan, infinite, 0.0f})}),
                       Write("b", {Floats("w", {nan, infinite, -0.0f})}))
                  .differences.empty());
  EXPECT_EQ(OnlyDifference({Floats("w", {nan, 1})}, {Floats("w", {1, 1})}).largest, kInfinity);
  EXPECT_EQ(OnlyDifference({Floats("w", {infinite})}, {Floats("w", {-infinite})}).largest, kInfinity);
}

TEST_F(CompareTest, NamesShapesAndTypesAreTold) {
  Difference found = OnlyDifference({MakeTestTensor("w", "int64", {2, 3})}, {});
  EXPECT_EQ(found.first, "int64 [2, 3]");
  EXPECT_EQ(found.second, "");
  EXPECT_FALSE(found.largest.has_value());
  found = OnlyDifference({MakeTestTensor("w", "int64", {2, 3})}, {MakeTestTensor("w", "int64", {3, 2})});
  EXPECT_EQ(found.second, "int64 [3, 2]");
  EXPECT_FALSE(found.largest.has_value());
  found = OnlyDifference({Floats("w", {1, 2})}, {MakeTestTensor("w", "int8", {2})});
  EXPECT_EQ(found.first, "float32 [2]");
  EXPECT_TRUE(found.largest.has_value());
  // Which have no numbers that we compare.
  TestTensor other = MakeTestTensor("w", "float8_e5m2", {2});
  other.numbers[0] = static_cast<char>(other.numbers[0] ^ 1);
  found = OnlyDifference({MakeTestTensor("w", "float8_e5m2", {2})}, {other});
  EXPECT_FALSE(found.largest.has_value());
}

TEST_F(CompareTest, OfAnotherFormatToo) {
  const std::vector<TestTensor> tensors = {Floats("v", {5}), Floats("w", {1, 2, 3})};
  const std::string dcp = Write("dcp", tensors), hf = dir_.File("hf");
  std::filesystem::create_directory(hf);
  const TensorType* type = FindTensorType("float32");
  const auto writer = MakeHfWriter(hf, {{"w", type, {3}, 12}, {"v", type, {1}, 4}}, 100, "{}");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Write(0, tensors[1].numbers.data()).ok());
  ASSERT_TRUE((*writer)->Write(1, tensors[0].numbers.data()).ok());
  ASSERT_TRUE((*writer)->Finish().ok());
  const Comparison comparison = Compared(dcp, hf);
  ASSERT_EQ(comparison.differences.size(), 1u);
  EXPECT_EQ(comparison.differences[0].name, "iteration");
  EXPECT_EQ(comparison.differences[0].first, "7");
  EXPECT_EQ(comparison.equal, 2);
}

}  // namespace
}  // namespace fsdpd

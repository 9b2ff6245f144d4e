// Small test checkpoint of several files: shards that are split at arbitrary elements, with all kinds of
// types and shapes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"

namespace fsdpd {

struct TestTensor {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;
  std::string numbers;  // All of them, as bytes.
};

// With distinct numbers.
TestTensor MakeTestTensor(const std::string& name, const char* type, const std::vector<int64_t>& shape);

// float32 with small integers, which every type can represent.
TestTensor MakeSmallNumbers(const std::string& name, const std::vector<int64_t>& shape);

// One to three dimensions, a scalar, an empty one, and several types.
std::vector<TestTensor> SmallTensors();

// Writes the tensors, each flattened and split into `cuts` equal parts, to as many files, and the value
// "iteration" = 7. Uses several threads. Does not commit.
struct WrittenFiles {
  std::vector<DcpFile> files;
  std::vector<DcpSum> sums;
};
WrittenFiles WriteTestFiles(const std::string& directory, const std::vector<TestTensor>& tensors, int cuts);

absl::Status CommitTestFiles(const std::string& directory, const WrittenFiles& written);

// Reads and compares all tensors. Returns the reader's error, or OK; a difference fails the test.
absl::Status ReadBack(const std::string& directory, const std::vector<TestTensor>& tensors);

std::string ReadFileOf(const std::string& path);
void WriteFileOf(const std::string& path, const std::string& bytes);

}  // namespace fsdpd

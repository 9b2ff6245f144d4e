// A checkpoint of two files for tests: what a shard cut at any number looks like, in types and shapes of all
// kinds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_reader.h"

namespace fsdpd {

struct TestTensor {
  std::string name;
  const TensorType* type = nullptr;
  std::vector<int64_t> shape;
  std::string numbers;  // All of them, as bytes.
};

// With numbers that differ.
TestTensor MakeTestTensor(const std::string& name, const char* type, const std::vector<int64_t>& shape);

// Of float32, with small whole numbers, which every type has.
TestTensor MakeSmallNumbers(const std::string& name, const std::vector<int64_t>& shape);

// Of one to three dimensions, a scalar, an empty one, and of several types.
std::vector<TestTensor> SmallTensors();

// Writes the tensors, each flattened and cut at `cuts` parts' bounds, to as many files, and the value
// "iteration" = 7. Files are written by several threads. Does not commit.
struct WrittenFiles {
  std::vector<DcpFile> files;
  std::vector<DcpSum> sums;
};
WrittenFiles WriteTestFiles(const std::string& directory, const std::vector<TestTensor>& tensors, int cuts);

absl::Status CommitTestFiles(const std::string& directory, const WrittenFiles& written);

// Reads all tensors whole, and compares. An error of the reader's, or OK; a difference is a failed
// expectation.
absl::Status ReadBack(const std::string& directory, const std::vector<TestTensor>& tensors);

std::string ReadFileOf(const std::string& path);
void WriteFileOf(const std::string& path, const std::string& bytes);

}  // namespace fsdpd

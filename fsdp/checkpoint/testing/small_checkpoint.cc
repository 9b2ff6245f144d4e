#include "fsdp/checkpoint/testing/small_checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <thread>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

int64_t NumbersOf(const TestTensor& tensor) {
  return static_cast<int64_t>(tensor.numbers.size()) / tensor.type->bytes;
}

std::string Iteration() {
  PickleWriter writer;
  writer.Int(7);
  return TorchSaved(writer.Take());
}

}  // namespace

TestTensor MakeTestTensor(const std::string& name, const char* type, const std::vector<int64_t>& shape) {
  TestTensor tensor = {name, FindTensorType(type), shape, ""};
  const int64_t bytes = *BytesOf(*tensor.type, shape);
  uint32_t state = static_cast<uint32_t>(bytes) * 2654435761u + static_cast<uint32_t>(name.size());
  for (int64_t i = 0; i < bytes; ++i) {
    state = state * 1664525u + 1013904223u;
    tensor.numbers += static_cast<char>(state >> 24);
  }
  return tensor;
}

TestTensor MakeSmallNumbers(const std::string& name, const std::vector<int64_t>& shape) {
  TestTensor tensor = MakeTestTensor(name, "float32", shape);
  auto* numbers = reinterpret_cast<float*>(tensor.numbers.data());
  for (int64_t i = 0; i < NumbersOf(tensor); ++i) {
    numbers[i] = static_cast<float>((i * 7 + static_cast<int64_t>(name.size())) % 251) - 125;
  }
  return tensor;
}

std::vector<TestTensor> SmallTensors() {
  return {MakeTestTensor("model.w", "float32", {5, 7}), MakeTestTensor("model.b", "bfloat16", {11}),
          MakeTestTensor("model.c", "int64", {2, 3, 4}), MakeTestTensor("step", "float32", {}),
          MakeTestTensor("none", "float32", {0, 4})};
}

WrittenFiles WriteTestFiles(const std::string& directory, const std::vector<TestTensor>& tensors, int cuts) {
  WrittenFiles written;
  std::vector<std::vector<const char*>> numbers(cuts);
  for (int part = 0; part < cuts; ++part) {
    std::vector<DcpPiece> pieces;
    for (const TestTensor& tensor : tensors) {
      const int64_t all = NumbersOf(tensor);
      if (all == 0 && part == 0) {
        pieces.push_back({tensor.name,
                          tensor.type,
                          tensor.shape,
                          {std::vector<int64_t>(tensor.shape.size()), tensor.shape}});
        numbers[part].push_back(tensor.numbers.data());
      }
      const int64_t begin = all * part / cuts, end = all * (part + 1) / cuts;
      const char* at = tensor.numbers.data() + begin * tensor.type->bytes;
      for (DcpPiece& piece : PiecesOfRun(tensor.name, tensor.type, tensor.shape, begin, end - begin)) {
        numbers[part].push_back(at);
        at += piece.at.elements() * tensor.type->bytes;
        pieces.push_back(std::move(piece));
      }
    }
    std::vector<DcpSmall> values;
    if (part == 0) values.push_back({"iteration", Iteration()});
    written.files.push_back(LayOut(DcpFileName(part), std::move(pieces), std::move(values)));
  }
  for (int part = 0; part < cuts; ++part) {
    const auto writer = DcpWriter::Create(directory, written.files[part]);
    FSDPD_CHECK_OK(writer.status());
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (size_t i = thread; i < numbers[part].size(); i += 3) {
          FSDPD_CHECK_OK((*writer)->Write(i, numbers[part][i]));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const absl::StatusOr<DcpSum> sum = (*writer)->Finish();
    FSDPD_CHECK_OK(sum.status());
    written.sums.push_back(*sum);
  }
  return written;
}

absl::Status CommitTestFiles(const std::string& directory, const WrittenFiles& written) {
  std::vector<const DcpFile*> files;
  for (const DcpFile& file : written.files) files.push_back(&file);
  return CommitDcp(directory, files, written.sums);
}

absl::Status ReadBack(const std::string& directory, const std::vector<TestTensor>& tensors) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(directory));
  for (const TestTensor& tensor : tensors) {
    const DcpTensor* found = reader->FindTensor(tensor.name);
    if (found == nullptr) return absl::NotFoundError(tensor.name);
    if (found->type != tensor.type || found->shape != tensor.shape) return absl::DataLossError(tensor.name);
    std::string numbers(tensor.numbers.size(), '\0');
    FSDPD_RETURN_IF_ERROR(reader->ReadRun(*found, 0, NumbersOf(tensor), numbers.data()));
    EXPECT_EQ(numbers, tensor.numbers) << tensor.name;
  }
  return absl::OkStatus();
}

std::string ReadFileOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

void WriteFileOf(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  FSDPD_CHECK(file.good());
}

}  // namespace fsdpd

// Reads and writes checkpoints for tests in Python, which compare them with torch's.
//
//   write DIR < lines    "file NAME", then for it "run NAME TYPE SHAPE BEGIN COUNT PATH": elements
//                           [BEGIN, BEGIN + COUNT) of a tensor, whose bytes are in the file PATH;
//                           "part NAME TYPE SHAPE OFFSETS SIZES PATH"; "number NAME INTEGER". Commits. Sizes
//                           are "2,3", and "-" for none.
//   read DIR OUT         Writes every tensor's bytes to OUT/NAME, and prints "NAME TYPE SHAPE" for each;
//                           "NAME value TEXT".
//   part DIR NAME OFFSETS SIZES   Writes the bytes of a rectangle to stdout.
//   frame TYPE SHAPE        Writes torch.save's output for a tensor of zeros to stdout.
//   sparse TYPE SHAPE PATH  The same into a file, with a hole for the zeros.
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <stdlib.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/pickle_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

int64_t IntOf(absl::string_view text) {
  int64_t number = 0;
  FSDPD_CHECK(absl::SimpleAtoi(text, &number));
  return number;
}

std::vector<int64_t> SizesOf(const std::string& text) {
  std::vector<int64_t> sizes;
  if (text == "-") return sizes;
  for (const absl::string_view size : absl::StrSplit(text, ',')) sizes.push_back(IntOf(size));
  return sizes;
}

std::string TextOf(const std::vector<int64_t>& sizes) {
  return sizes.empty() ? "-" : absl::StrJoin(sizes, ",");
}

std::string Content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  FSDPD_CHECK(file.good());
  return bytes.str();
}

// A file under construction: its pieces, and where the data of each is.
struct Described {
  std::string name;
  std::vector<DcpPiece> pieces;
  std::vector<std::pair<size_t, int64_t>> numbers;  // Index into `contents`; from this byte on.
  std::vector<std::string> contents;
  std::vector<DcpSmall> values;
};

void Describe(const std::vector<std::string>& words, std::vector<Described>* files) {
  if (words[0] == "file") {
    files->emplace_back();
    files->back().name = words[1];
    return;
  }
  Described& file = files->back();
  if (words[0] == "number") {
    PickleWriter writer;
    writer.Int(IntOf(words[2]));
    file.values.push_back({words[1], TorchSaved(writer.Take())});
    return;
  }
  const TensorType* type = FindTensorType(words[2]);
  FSDPD_CHECK(type != nullptr);
  const std::vector<int64_t> shape = SizesOf(words[3]);
  std::vector<DcpPiece> pieces = {{words[1], type, shape, {SizesOf(words[4]), SizesOf(words[5])}}};
  if (words[0] == "run") pieces = PiecesOfRun(words[1], type, shape, IntOf(words[4]), IntOf(words[5]));
  file.contents.push_back(Content(words[6]));
  int64_t begin = 0;
  for (DcpPiece& piece : pieces) {
    file.numbers.push_back({file.contents.size() - 1, begin});
    begin += piece.at.elements() * type->bytes;
    file.pieces.push_back(std::move(piece));
  }
  FSDPD_CHECK(begin == static_cast<int64_t>(file.contents.back().size()));
}

absl::Status Write(const std::string& directory) {
  std::vector<Described> described;
  for (std::string line; std::getline(std::cin, line);) Describe(absl::StrSplit(line, ' '), &described);
  std::vector<DcpFile> layouts;
  std::vector<const DcpFile*> files;
  std::vector<DcpSum> sums;
  for (Described& file : described) {
    layouts.push_back(LayOut(file.name, std::move(file.pieces), std::move(file.values)));
  }
  for (size_t i = 0; i < layouts.size(); ++i) {
    FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpWriter> writer, DcpWriter::Create(directory, layouts[i]));
    for (size_t piece = 0; piece < layouts[i].pieces.size(); ++piece) {
      const auto& [content, begin] = described[i].numbers[piece];
      FSDPD_RETURN_IF_ERROR(writer->Write(piece, described[i].contents[content].data() + begin));
    }
    FSDPD_ASSIGN_OR_RETURN(const DcpSum sum, writer->Finish());
    files.push_back(&layouts[i]);
    sums.push_back(sum);
  }
  return CommitDcp(directory, files, sums);
}

absl::Status Read(const std::string& directory, const std::string& out) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(directory));
  for (const DcpTensor& tensor : reader->index().tensors) {
    const Rectangle whole = {std::vector<int64_t>(tensor.shape.size()), tensor.shape};
    std::string numbers(whole.elements() * tensor.type->bytes, '\0');
    FSDPD_RETURN_IF_ERROR(reader->Read(tensor, whole, numbers.data()));
    std::ofstream(absl::StrCat(out, "/", tensor.name), std::ios::binary) << numbers;
    std::cout << tensor.name << " " << tensor.type_name << " " << TextOf(tensor.shape) << "\n";
  }
  for (const DcpValue& value : reader->index().values) {
    FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, reader->ReadValue(value));
    std::cout << value.name << " value " << DescribePickled(pickle.root()) << "\n";
  }
  return absl::OkStatus();
}

absl::Status Part(const std::string& directory, const std::string& name, const Rectangle& part) {
  FSDPD_ASSIGN_OR_RETURN(const std::unique_ptr<DcpReader> reader, DcpReader::Open(directory));
  const DcpTensor* tensor = reader->FindTensor(name);
  if (tensor == nullptr) return absl::NotFoundError(name);
  std::string numbers(part.elements() * tensor->type->bytes, '\0');
  FSDPD_RETURN_IF_ERROR(reader->Read(*tensor, part, numbers.data()));
  std::cout << numbers;
  return absl::OkStatus();
}

absl::Status Frame(const TensorType& type, const std::vector<int64_t>& shape) {
  const TorchSaveFrame frame = FrameOf(type, shape);
  const std::string zeros(frame.data_bytes, '\0');
  std::cout << frame.head << zeros << TailOf(type, shape, Crc32(zeros.data(), frame.data_bytes));
  return absl::OkStatus();
}

absl::Status Sparse(const TensorType& type, const std::vector<int64_t>& shape, const std::string& path) {
  const TorchSaveFrame frame = FrameOf(type, shape);
  std::ofstream file(path, std::ios::binary);
  file << frame.head;
  file.seekp(static_cast<int64_t>(frame.head.size()) + frame.data_bytes);
  file << TailOf(type, shape, 0);
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(path);
}

absl::Status Run(const std::vector<std::string>& words) {
  if (words[0] == "write") return Write(words.at(1));
  if (words[0] == "read") return Read(words.at(1), words.at(2));
  if (words[0] == "part") return Part(words.at(1), words.at(2), {SizesOf(words.at(3)), SizesOf(words.at(4))});
  const TensorType* type = FindTensorType(words.at(1));
  FSDPD_CHECK(type != nullptr);
  if (words[0] == "sparse") return Sparse(*type, SizesOf(words.at(2)), words.at(3));
  FSDPD_CHECK(words[0] == "frame");
  return Frame(*type, SizesOf(words.at(2)));
}

}  // namespace
}  // namespace fsdpd

int main(int argc, char** argv) {
  const absl::Status status = fsdpd::Run(std::vector<std::string>(argv + 1, argv + argc));
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << status << "\n";
  return EXIT_FAILURE;
}

#include "fsdp/checkpoint/dcp_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp_writer.h"
#include "fsdp/checkpoint/torch_save.h"

namespace fsdpd {
namespace {

class DcpTensorWriter : public TensorWriter {
 public:
  DcpTensorWriter(std::string folder, std::vector<size_t> begins)
      : folder_(std::move(folder)), begins_(std::move(begins)) {}

  absl::Status Create(const std::vector<DcpPiece>& pieces) {
    for (size_t file = 0; file < begins_.size(); ++file) {
      const auto begin = pieces.begin() + begins_[file];
      const auto end = file + 1 < begins_.size() ? pieces.begin() + begins_[file + 1] : pieces.end();
      layouts_.push_back(
          std::make_unique<DcpFile>(LayOut(DcpFileName(0, static_cast<int>(file)), {begin, end})));
      FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpWriter> writer, DcpWriter::Create(folder_, *layouts_.back()));
      writers_.push_back(std::move(writer));
    }
    return absl::OkStatus();
  }

  absl::Status Write(size_t tensor, const void* numbers) override {
    const size_t file = std::upper_bound(begins_.begin(), begins_.end(), tensor) - begins_.begin() - 1;
    return writers_[file]->Write(tensor - begins_[file], numbers);
  }

  absl::Status Finish() override {
    std::vector<const DcpFile*> files;
    std::vector<DcpSum> sums;
    for (size_t i = 0; i < writers_.size(); ++i) {
      FSDPD_ASSIGN_OR_RETURN(const DcpSum sum, writers_[i]->Finish());
      files.push_back(layouts_[i].get());
      sums.push_back(sum);
    }
    return CommitDcp(folder_, files, sums);
  }

  int64_t files() const override { return static_cast<int64_t>(writers_.size()); }

 private:
  const std::string folder_;
  const std::vector<size_t> begins_;
  std::vector<std::unique_ptr<DcpFile>> layouts_;  // Which the writers refer to.
  std::vector<std::unique_ptr<DcpWriter>> writers_;
};

}  // namespace

DcpTensorReader::DcpTensorReader(std::unique_ptr<DcpReader> dcp) : dcp_(std::move(dcp)) {
  std::vector<StoredTensor> tensors;
  for (const DcpTensor& tensor : dcp_->index().tensors) {
    // What Open() let through has a type, and bytes that can be counted.
    tensors.push_back({tensor.name, tensor.type, tensor.shape, *BytesOf(*tensor.type, tensor.shape)});
  }
  SetTensors(std::move(tensors));
  for (const StoredTensor& tensor : this->tensors()) found_.push_back(dcp_->FindTensor(tensor.name));
}

absl::StatusOr<std::unique_ptr<DcpTensorReader>> DcpTensorReader::Open(const std::string& folder) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpReader> dcp, DcpReader::Open(folder));
  return std::unique_ptr<DcpTensorReader>(new DcpTensorReader(std::move(dcp)));
}

absl::Status DcpTensorReader::ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const {
  return dcp_->ReadRun(*found_[tensor], begin, count, out);
}

absl::Status DcpTensorReader::ReadPart(size_t tensor, const Rectangle& part, void* out) const {
  return dcp_->Read(*found_[tensor], part, out);
}

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeDcpWriter(const std::string& folder,
                                                            const std::vector<DcpPiece>& pieces,
                                                            int64_t file_bytes) {
  std::vector<int64_t> bytes;
  for (const DcpPiece& piece : pieces) bytes.push_back(piece.at.elements() * piece.type->bytes);
  auto writer = std::make_unique<DcpTensorWriter>(folder, FileBegins(bytes, file_bytes));
  FSDPD_RETURN_IF_ERROR(writer->Create(pieces));
  return writer;
}

DcpPiece WholePiece(const StoredTensor& tensor) {
  return {tensor.name, tensor.type, tensor.shape, {std::vector<int64_t>(tensor.shape.size()), tensor.shape}};
}

}  // namespace fsdpd

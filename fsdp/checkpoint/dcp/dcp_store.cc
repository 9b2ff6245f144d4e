#include "fsdp/checkpoint/dcp/dcp_store.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

class DcpTensorWriter : public TensorWriter {
 public:
  DcpTensorWriter(std::string directory, std::vector<size_t> begins)
      : directory_(std::move(directory)), begins_(std::move(begins)) {}

  absl::Status Create(const std::vector<DcpPiece>& pieces, const std::vector<DcpSmall>& values,
                      const std::vector<CompleteFile>& whole) {
    // A checkpoint with only values still needs a file.
    if (begins_.empty() && !values.empty()) begins_.push_back(0);
    sums_.resize(begins_.size());
    for (size_t file = 0; file < begins_.size(); ++file) {
      const auto begin = pieces.begin() + begins_[file];
      const auto end = file + 1 < begins_.size() ? pieces.begin() + begins_[file + 1] : pieces.end();
      layouts_.push_back(
          std::make_unique<DcpFile>(LayOut(DcpFileName(0, static_cast<int>(file)), {begin, end},
                                           file == 0 ? values : std::vector<DcpSmall>())));
      const auto found = std::find_if(whole.begin(), whole.end(), [&](const CompleteFile& one) {
        return one.name == layouts_.back()->name && one.bytes == layouts_.back()->bytes;
      });
      writers_.emplace_back();
      if (found != whole.end()) {
        sums_[file] = {found->bytes, found->crc32};
        continue;
      }
      FSDPD_ASSIGN_OR_RETURN(writers_.back(), DcpWriter::Create(directory_, *layouts_.back()));
    }
    return absl::OkStatus();
  }

  absl::Status Write(size_t tensor, const void* numbers) override {
    const size_t file = FileOf(tensor);
    FSDPD_CHECK(writers_[file] != nullptr);
    return writers_[file]->Write(tensor - begins_[file], numbers);
  }

  size_t FileOf(size_t tensor) const override {
    return std::upper_bound(begins_.begin(), begins_.end(), tensor) - begins_.begin() - 1;
  }

  bool IsComplete(size_t file) const override { return writers_[file] == nullptr; }

  absl::StatusOr<CompleteFile> FinishFile(size_t file) override {
    FSDPD_ASSIGN_OR_RETURN(sums_[file], writers_[file]->Finish());
    writers_[file].reset();
    return CompleteFile{layouts_[file]->name, sums_[file].bytes, sums_[file].crc32};
  }

  absl::Status Finish() override {
    std::vector<const DcpFile*> files;
    for (size_t i = 0; i < writers_.size(); ++i) {
      if (writers_[i] != nullptr) FSDPD_RETURN_IF_ERROR(FinishFile(i).status());
      files.push_back(layouts_[i].get());
    }
    return CommitDcp(directory_, files, sums_);
  }

  int64_t files() const override { return static_cast<int64_t>(layouts_.size()); }

 private:
  const std::string directory_;
  std::vector<size_t> begins_;
  std::vector<std::unique_ptr<DcpFile>> layouts_;    // Referenced by the writers.
  std::vector<std::unique_ptr<DcpWriter>> writers_;  // Null: the file was complete before.
  std::vector<DcpSum> sums_;
};

}  // namespace

DcpTensorReader::DcpTensorReader(std::unique_ptr<DcpReader> dcp) : dcp_(std::move(dcp)) {
  std::vector<StoredTensor> tensors;
  for (const DcpTensor& tensor : dcp_->index().tensors) {
    // Open() has checked that the type is known and the size does not overflow.
    tensors.push_back({tensor.name, tensor.type, tensor.shape, *BytesOf(*tensor.type, tensor.shape)});
  }
  SetTensors(std::move(tensors));
  for (const StoredTensor& tensor : this->tensors()) found_.push_back(dcp_->FindTensor(tensor.name));
}

absl::StatusOr<std::unique_ptr<DcpTensorReader>> DcpTensorReader::Open(const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<DcpReader> dcp, DcpReader::Open(directory));
  return std::unique_ptr<DcpTensorReader>(new DcpTensorReader(std::move(dcp)));
}

absl::Status DcpTensorReader::ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const {
  return dcp_->ReadRun(*found_[tensor], begin, count, out);
}

absl::Status DcpTensorReader::ReadPart(size_t tensor, const Rectangle& part, void* out) const {
  return dcp_->Read(*found_[tensor], part, out);
}

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeDcpWriter(const std::string& directory,
                                                            const std::vector<DcpPiece>& pieces,
                                                            int64_t file_bytes,
                                                            const std::vector<DcpSmall>& values,
                                                            const std::vector<CompleteFile>& whole) {
  std::vector<int64_t> bytes;
  for (const DcpPiece& piece : pieces) bytes.push_back(piece.at.elements() * piece.type->bytes);
  auto writer = std::make_unique<DcpTensorWriter>(directory, FileBegins(bytes, file_bytes));
  FSDPD_RETURN_IF_ERROR(writer->Create(pieces, values, whole));
  return writer;
}

DcpPiece FullPiece(const StoredTensor& tensor) {
  return {tensor.name, tensor.type, tensor.shape, {std::vector<int64_t>(tensor.shape.size()), tensor.shape}};
}

}  // namespace fsdpd

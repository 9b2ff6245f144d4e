#include "fsdp/checkpoint/dcp/dcp_store.h"

#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_writer.h"

namespace fsdpd {
namespace {

class DcpTensorWriter : public TensorWriter {
 public:
  DcpTensorWriter(std::string directory, std::vector<size_t> begins)
      : TensorWriter(std::move(begins)), directory_(std::move(directory)) {}

  absl::Status Create(const std::vector<DcpPiece>& pieces, const std::vector<DcpSmall>& values,
                      const std::vector<CompleteFile>& whole) {
    sums_.resize(begins_.size());
    writers_.resize(begins_.size());
    for (size_t file = 0; file < begins_.size(); ++file) {
      layouts_.push_back(std::make_unique<DcpFile>(
          LayOut(DcpFileName(0, static_cast<int>(file)),
                 {pieces.begin() + begins_[file], pieces.begin() + EndOf(file, pieces.size())},
                 file == 0 ? values : std::vector<DcpSmall>())));
      const DcpFile& layout = *layouts_.back();
      if (const CompleteFile* found = FindComplete(whole, layout.name, layout.bytes)) {
        sums_[file] = {found->bytes, found->crc32};
        continue;
      }
      FSDPD_ASSIGN_OR_RETURN(writers_[file], DcpWriter::Create(directory_, layout));
    }
    return absl::OkStatus();
  }

  absl::Status Write(size_t tensor, const void* numbers) override {
    const size_t file = FileOf(tensor);
    FSDPD_CHECK(writers_[file] != nullptr);
    return writers_[file]->Write(tensor - begins_[file], numbers);
  }

  bool IsComplete(size_t file) const override { return writers_[file] == nullptr; }

  absl::StatusOr<CompleteFile> FinishFile(size_t file) override {
    FSDPD_ASSIGN_OR_RETURN(sums_[file], writers_[file]->Finish());
    writers_[file].reset();
    return CompleteFile{layouts_[file]->name, sums_[file].bytes, sums_[file].crc32};
  }

  absl::Status Finish() override {
    FSDPD_RETURN_IF_ERROR(FinishFiles());
    std::vector<const DcpFile*> files;
    for (const std::unique_ptr<DcpFile>& layout : layouts_) files.push_back(layout.get());
    return CommitDcp(directory_, files, sums_);
  }

 private:
  const std::string directory_;
  std::vector<std::unique_ptr<DcpFile>> layouts_;    // Referenced by the writers.
  std::vector<std::unique_ptr<DcpWriter>> writers_;  // Null: the file was complete before.
  std::vector<DcpSum> sums_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TensorWriter>> MakeDcpWriter(const std::string& directory,
                                                            const std::vector<DcpPiece>& pieces,
                                                            int64_t file_bytes,
                                                            const std::vector<DcpSmall>& values,
                                                            const std::vector<CompleteFile>& whole) {
  std::vector<int64_t> bytes;
  for (const DcpPiece& piece : pieces) bytes.push_back(piece.at.elements() * piece.type->bytes);
  std::vector<size_t> begins = FileBegins(bytes, file_bytes);
  if (begins.empty() && !values.empty()) begins.push_back(0);  // Only values still need a file.
  auto writer = std::make_unique<DcpTensorWriter>(directory, std::move(begins));
  FSDPD_RETURN_IF_ERROR(writer->Create(pieces, values, whole));
  return writer;
}

}  // namespace fsdpd

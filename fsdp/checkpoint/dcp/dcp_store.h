// TensorReader and TensorWriter (tensor_store.h) for DCP checkpoints; tensors are written as a whole.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/dcp/dcp_reader.h"
#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {

// Has only tensors; use dcp() for other values.
class DcpTensorReader : public TensorReader {
 public:
  static absl::StatusOr<std::unique_ptr<DcpTensorReader>> Open(const std::string& directory);

  absl::Status ReadRun(size_t tensor, int64_t begin, int64_t count, void* out) const override;
  absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const override;

  const DcpReader& dcp() const { return *dcp_; }

 private:
  explicit DcpTensorReader(std::unique_ptr<DcpReader> dcp);

  const std::unique_ptr<DcpReader> dcp_;
  std::vector<const DcpTensor*> found_;  // By index in tensors().
};

// A writer for files of a single rank, `file_bytes` each, the first one also with `values`. Write()'s index
// counts pieces. `whole`: complete files of an earlier writer for the same pieces and values. REQUIRES: the
// directory exists and does not contain a checkpoint.
absl::StatusOr<std::unique_ptr<TensorWriter>> MakeDcpWriter(const std::string& directory,
                                                            const std::vector<DcpPiece>& pieces,
                                                            int64_t file_bytes,
                                                            const std::vector<DcpSmall>& values = {},
                                                            const std::vector<CompleteFile>& whole = {});

// A whole tensor as one piece.
DcpPiece FullPiece(const StoredTensor& tensor);

}  // namespace fsdpd

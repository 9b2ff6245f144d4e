// Reader for DCP checkpoints: any rectangle of a tensor, regardless of how it is chunked, and values.
// tensors() are index().tensors.
//
// Open() rejects a directory with any violation that can be found without reading tensor data
// (dcp_contents.h), so all tensors in index() are complete. A read that covers a whole chunk verifies the
// chunk's checksum; partial reads do not. Use VerifyDcp to check everything first.
//
// Const methods are thread-safe. Errors: DATA_LOSS and UNIMPLEMENTED name file and byte; NOT_FOUND if there
// is no checkpoint.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "fsdp/checkpoint/dcp/dcp_contents.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/tensor_store.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

class DcpReader : public TensorReader {
 public:
  static absl::StatusOr<std::unique_ptr<DcpReader>> Open(const std::string& directory);

  using TensorReader::Read;
  const DcpIndex& index() const { return contents_.index; }
  const DcpTensor* FindTensor(const std::string& name) const;  // Null if not found.
  const DcpValue* FindValue(const std::string& name) const;

  // Copies the elements of `part` to `out`, in row-major order. REQUIRES: the tensor is in index() and
  // contains `part`.
  absl::Status Read(const DcpTensor& tensor, const Rectangle& part, void* out) const;
  absl::Status ReadPart(size_t tensor, const Rectangle& part, void* out) const override {
    return Read(index().tensors[tensor], part, out);
  }

  // Copies elements [begin, begin + elements) of the flattened tensor (an FSDP shard). REQUIRES: likewise.
  absl::Status ReadRun(const DcpTensor& tensor, int64_t begin, int64_t elements, void* out) const;
  absl::Status ReadRun(size_t tensor, int64_t begin, int64_t elements, void* out) const override {
    return ReadRun(index().tensors[tensor], begin, elements, out);
  }

  absl::StatusOr<Pickle> ReadValue(const DcpValue& value) const;

 private:
  DcpReader(std::string directory, DcpContents contents);

  absl::StatusOr<std::shared_ptr<const InputFile>> OpenFile(int number) const;

  const std::string directory_;
  const DcpContents contents_;
  mutable Mutex mutex_;
  mutable std::map<int, std::shared_ptr<const InputFile>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd

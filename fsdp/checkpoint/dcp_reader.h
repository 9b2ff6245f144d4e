// Reads a checkpoint: any rectangle of its tensors, whatever chunks they lie in, and values.
//
// Open() refuses a directory with any fault that shows without reading numbers (dcp_contents.h), so a tensor
// that is in index() is whole. Numbers that are read with all of their chunk are compared with the chunk's
// checksum; others are not, and `VerifyDcp` is for who wants to know first.
//
// Thread safety: const methods may run on any number of threads. Errors: DATA_LOSS and UNIMPLEMENTED name
// file and byte; NOT_FOUND where there is no checkpoint.
#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "fsdp/checkpoint/dcp_contents.h"
#include "fsdp/checkpoint/pickle.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

class DcpReader {
 public:
  static absl::StatusOr<std::unique_ptr<DcpReader>> Open(const std::string& directory);

  const DcpIndex& index() const { return contents_.index; }
  const DcpTensor* FindTensor(const std::string& name) const;  // Null: there is none.
  const DcpValue* FindValue(const std::string& name) const;

  // The numbers of `part` into `out`, in row-major order. REQUIRES: it is within the tensor, which is one of
  // index()'s.
  absl::Status Read(const DcpTensor& tensor, const Rectangle& part, void* out) const;

  // Numbers [begin, begin + elements) of the flattened tensor, as a shard wants them. REQUIRES: likewise.
  absl::Status ReadRun(const DcpTensor& tensor, int64_t begin, int64_t elements, void* out) const;

  absl::StatusOr<Pickle> ReadValue(const DcpValue& value) const;

 private:
  DcpReader(std::string directory, DcpContents contents)
      : directory_(std::move(directory)), contents_(std::move(contents)) {}

  absl::StatusOr<std::shared_ptr<const InputFile>> OpenFile(int number) const;

  const std::string directory_;
  const DcpContents contents_;
  mutable Mutex mutex_;
  mutable std::map<int, std::shared_ptr<const InputFile>> open_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace fsdpd

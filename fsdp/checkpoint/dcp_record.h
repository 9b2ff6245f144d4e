// One record of a checkpoint's file, read where it lies: its frame in few reads, and the numbers of its
// tensor.
//
// Thread safety: const. Errors: DATA_LOSS with file, byte of the record and what is wrong; UNIMPLEMENTED for
// what torch.save can write and is not read (torch_save.h).
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "fsdp/checkpoint/dcp_index.h"
#include "fsdp/checkpoint/pickle.h"
#include "fsdp/checkpoint/torch_save.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

class DcpRecord {
 public:
  // REQUIRES: `place` is within the file.
  static absl::StatusOr<DcpRecord> Open(std::shared_ptr<const InputFile> file, const DcpPlace& place);

  // The tensor of this chunk, compared with what the index says of it.
  absl::StatusOr<SavedTensor> OpenChunk(const DcpTensor& tensor, const DcpChunk& chunk) const;

  absl::StatusOr<Pickle> ReadValue() const;

  // The part of a chunk that lies within `wanted`, a rectangle of the same tensor, to its places in `out`,
  // which has the numbers of `wanted` in row-major order. A chunk that is read whole is compared with its
  // checksum, where it has one. REQUIRES: `saved` is from OpenChunk().
  absl::Status ReadPart(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                        char* out) const;

  // Every member against its checksum. False: there are none to compare with, and nothing was read.
  absl::StatusOr<bool> CheckMembers() const;

 private:
  DcpRecord(std::shared_ptr<const InputFile> file, const DcpPlace& place)
      : file_(std::move(file)), place_(place) {}

  ReadAt Reader() const;
  absl::Status Located(const absl::Status& status) const;
  absl::Status ReadRuns(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                        char* out) const;
  absl::Status ReadStrided(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                           char* out) const;

  std::shared_ptr<const InputFile> file_;
  DcpPlace place_;
  std::string head_, tail_;  // Both ends, where all but the numbers is.
};

}  // namespace fsdpd

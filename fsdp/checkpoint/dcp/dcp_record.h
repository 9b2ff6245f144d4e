// One record of a checkpoint file, read in place: its framing with few reads, and the data of its tensor.
//
// Const methods are thread-safe. Errors: DATA_LOSS with file, byte of the record and the problem;
// UNIMPLEMENTED for torch.save features that are not supported (torch_save.h).
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/format/torch_save.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {

class DcpRecord {
 public:
  // REQUIRES: `place` is within the file.
  static absl::StatusOr<DcpRecord> Open(std::shared_ptr<const InputFile> file, const DcpPlace& place);

  // Opens the tensor of this chunk and checks it against the index.
  absl::StatusOr<SavedTensor> OpenChunk(const DcpTensor& tensor, const DcpChunk& chunk) const;

  absl::StatusOr<Pickle> ReadValue() const;

  // Copies the part of a chunk that is within `wanted`, a rectangle of the same tensor, to its position in
  // `out`, which holds `wanted` in row-major order. A chunk that is read completely is verified with its
  // checksum if it has one. REQUIRES: `saved` is from OpenChunk().
  absl::Status ReadPart(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                        char* out) const;

  // Verifies the checksum of every member. Returns false, without reading, if the record has no checksums.
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
  std::string head_, tail_;  // Start and end of the record: everything except the data.
};

}  // namespace fsdpd

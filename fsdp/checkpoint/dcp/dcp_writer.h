// Writer for one file of a checkpoint, in the layout of dcp_file.h; and the commit of a checkpoint once all
// of its files are complete.
//
//   Create()     creates the file and reserves its bytes on disk, so that a full disk is detected up front.
//   Write()      writes a piece; once per piece, in any order, from any number of threads. Data is written in
//                place without a copy and must not change until it returns.
//   Finish()     after every Write() has returned: syncs the file to disk and returns its checksum.
//   CommitDcp()  on one rank, with the layouts of all files (each rank can compute all of them) and their
//                checksums (which must be sent): writes `.metadata` last, by a rename. Until then no reader
//                recognizes the directory as a checkpoint.
//
// Until Finish() a file is named "NAME.TOKEN.part", so a file with its final name is complete. A writer that
// is destroyed without a successful Finish() removes its .part file.
//
// Attempts that use one directory are sequential, and the caller that starts an attempt ends the previous
// one; nothing here excludes two. Protection against a late process of an earlier attempt: Create() removes
// all .part files of its name, so that the earlier writer's Finish() fails (NOT_FOUND). Create(), Finish()
// and CommitDcp() reject a directory with a `.metadata` (FAILED_PRECONDITION). Two races remain: a late
// process that calls Create() after the new attempt did may replace the file until the commit; and one whose
// Finish() checks for `.metadata` before the commit and renames after it replaces a committed file. VerifyDcp
// detects both, unless the bytes are equal.
//
// Other errors: system errors with the path (a full disk is UNAVAILABLE).
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp/dcp_file.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"

namespace fsdpd {

class DcpWriter {
 public:
  // `layout` must outlive it. REQUIRES: the directory exists.
  static absl::StatusOr<std::unique_ptr<DcpWriter>> Create(const std::string& directory,
                                                           const DcpFile& layout);
  ~DcpWriter();
  DcpWriter(const DcpWriter&) = delete;
  DcpWriter& operator=(const DcpWriter&) = delete;

  // Writes the data of layout.pieces[piece].
  absl::Status Write(size_t piece, const void* numbers);

  // The same for data that is generated: `numbers` returns `bytes` bytes starting at `begin`, is called in
  // ascending order, and its result must stay valid until the next call.
  using MakeNumbers = std::function<const void*(int64_t begin, int64_t bytes)>;
  absl::Status Write(size_t piece, const MakeNumbers& numbers);

  // REQUIRES: every piece was written.
  absl::StatusOr<DcpSum> Finish();

 private:
  DcpWriter(std::string directory, std::string part_path, const DcpFile& layout, int fd);

  const std::string directory_, path_, part_path_;  // part_path_ until Finish().
  const DcpFile& layout_;
  const int fd_;
  bool finished_ = false;
  // Checksum of each piece's record that was written; accessed by the one thread that writes it.
  std::vector<std::optional<uint32_t>> crc32_;
};

// Rejects files that do not form a complete checkpoint (FAILED_PRECONDITION, with all violations) or whose
// size on disk is wrong (DATA_LOSS); the directory is then unchanged. Removes other files of ranks, which
// belong to an attempt that was not committed.
absl::Status CommitDcp(const std::string& directory, const std::vector<const DcpFile*>& files,
                       const std::vector<DcpSum>& sums);

}  // namespace fsdpd

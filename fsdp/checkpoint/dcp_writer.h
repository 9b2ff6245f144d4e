// Writes one file of a checkpoint, as dcp_file.h laid it out, and commits a checkpoint when all of its files
// are there.
//
//   Create()     makes the file and reserves its bytes on disk, so that a full disk is known before the first
//                one.
//   Write()      once for each piece, in any order, from any number of threads at once: the numbers are
//                written from where they lie and are not copied. They must stay as they are until it returns.
//   Finish()     when every Write() has returned: all is on disk, and this is its sum.
//   CommitDcp()  on one rank, with the layouts of all files (each rank can make all of them) and their sums
//                (which have to be sent): writes `.metadata` last, by a rename. Until then no reader takes
//                the directory for a checkpoint.
//
// Until Finish() a file has another name, "NAME.TOKEN.part", so what has its name is complete. A writer that
// is destroyed without a Finish() that succeeded takes its part away.
//
// Attempts at one directory follow each other, and whoever starts one ends the one before; nothing here keeps
// two apart. What is done against a process of an attempt before that is late: Create() removes all parts of
// the file's name, so the Finish() of whoever made them before fails (NOT_FOUND). Create(), Finish() and
// CommitDcp() refuse a directory that has a `.metadata`: FAILED_PRECONDITION. What is left: a late process
// that calls Create() after the new attempt did may replace the file until the commit, and one whose Finish()
// looks for `.metadata` before the commit and renames after it replaces a committed file. VerifyDcp tells
// both, unless the bytes are the same.
//
// Other errors: what the system answered, with the path (UNAVAILABLE: a full disk is one).
#pragma once

#include <absl/status/statusor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp/checkpoint/dcp_file.h"
#include "fsdp/checkpoint/dcp_sums.h"

namespace fsdpd {

class DcpWriter {
 public:
  // `layout` must outlive it. REQUIRES: the directory exists.
  static absl::StatusOr<std::unique_ptr<DcpWriter>> Create(const std::string& directory,
                                                           const DcpFile& layout);
  ~DcpWriter();
  DcpWriter(const DcpWriter&) = delete;
  DcpWriter& operator=(const DcpWriter&) = delete;

  // The numbers of layout.pieces[piece].
  absl::Status Write(size_t piece, const void* numbers);

  // The same of numbers that have to be made: `bytes` bytes of them from byte `begin` on, in ascending order;
  // what is returned must stay until the next call.
  using MakeNumbers = std::function<const void*(int64_t begin, int64_t bytes)>;
  absl::Status Write(size_t piece, const MakeNumbers& numbers);

  // REQUIRES: every piece was written.
  absl::StatusOr<DcpSum> Finish();

 private:
  struct Record {
    bool written = false;
    int64_t begin = 0;
    int64_t bytes = 0;
    uint32_t crc32 = 0;
  };

  DcpWriter(std::string directory, std::string part_path, const DcpFile& layout, int fd);

  absl::Status WriteValues();

  const std::string directory_, path_, part_path_;  // part_path_ until Finish().
  const DcpFile& layout_;
  const int fd_;
  bool finished_ = false;
  std::vector<Record> pieces_, values_;  // Each touched by the one thread that writes it.
};

// Refused with every fault, and the directory left as it was, where the files together are no whole
// checkpoint (FAILED_PRECONDITION), or one of them is not there with its bytes (DATA_LOSS). Files of other
// ranks go: they are of an attempt that was not committed.
absl::Status CommitDcp(const std::string& directory, const std::vector<const DcpFile*>& files,
                       const std::vector<DcpSum>& sums);

}  // namespace fsdpd

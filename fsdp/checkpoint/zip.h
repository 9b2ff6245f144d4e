// Zip archives as torch.save writes them: members stored as they are, with names in UTF-8, and zip64 where 4
// GiB are not enough. Compression, encryption, several disks and comments are refused.
//
// The writer makes what stands around the data of members, byte for byte as torch does: data begins at
// multiples of 64 bytes from the archive's start, and a member's checksum follows it. So a caller can write
// tensors from where they lie, in pieces, and never has them here.
//
// Thread safety: none for the writer. Errors of the reader: DATA_LOSS, with the byte within the archive, or
// what `read` returned.
#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fsdpd {

class ZipWriter {
 public:
  // For each member: Begin(), then its bytes in the file, then End(); or Add(), for one whose bytes are here.
  void Begin(absl::string_view name, int64_t size);
  void End(uint32_t crc32);
  void Add(absl::string_view name, absl::string_view content);
  void Finish();  // The directory of members; nothing may follow.

  // What was made since the last Take(): all but the bytes of members that were begun.
  std::string Take();
  // Bytes of the archive up to here, those of members among them.
  int64_t position() const { return position_; }

 private:
  struct Member {
    std::string name;
    int64_t begin = 0;  // Of its header.
    int64_t size = 0;
    uint32_t crc32 = 0;
    bool wide() const;  // Needs zip64.
  };

  void Append(absl::string_view bytes);
  void Append(uint64_t value, int width);
  void AppendZip64(const Member& member);
  void AppendEntry(const Member& member);

  std::vector<Member> members_;
  std::string made_;
  int64_t position_ = 0;
};

struct ZipMember {
  std::string name;
  int64_t begin = 0;  // Of its bytes, from the archive's start.
  int64_t size = 0;
  uint32_t crc32 = 0;
  bool summed = true;  // False: the archive has no checksums, and `crc32` says nothing.
};

// Bytes [begin, begin + size) of the archive into `out`, all or an error.
using ReadAt = std::function<absl::Status(int64_t begin, int64_t size, void* out)>;
ReadAt ReadAtOf(absl::string_view bytes);  // Which must outlive it.

// The members of an archive of `size` bytes, each within it and none over another, with names in UTF-8; their
// contents are not read. torch.serialization.set_crc32_options(False) makes archives in which every checksum
// is 0.
absl::StatusOr<std::vector<ZipMember>> ReadZip(int64_t size, const ReadAt& read);

// The content of a member of at most `limit` bytes, compared with its checksum where it has one. REQUIRES:
// `member` is of the archive.
absl::StatusOr<std::string> ReadZipMember(const ZipMember& member, const ReadAt& read, int64_t limit);

}  // namespace fsdpd

// Zip archives in the form that torch.save writes: stored members with UTF-8 names, and zip64 beyond 4 GiB.
// Compression, encryption, multiple disks and comments are rejected.
//
// The writer produces everything around the members' data, byte for byte like torch: data starts at multiples
// of 64 bytes from the start of the archive, and is followed by its checksum. Callers write tensor data in
// place, in pieces, without passing it through the writer.
//
// The writer is not thread-safe. Errors of the reader: DATA_LOSS with the byte in the archive, or the error
// of `read`.
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
  // For each member: Begin(), then its bytes in the file, then End(); or Add() for content in memory.
  void Begin(absl::string_view name, int64_t size);
  void End(uint32_t crc32);
  void Add(absl::string_view name, absl::string_view content);
  void Finish();  // Writes the central directory; nothing may follow.

  // Output since the last Take(): everything except the data of members that were begun.
  std::string Take();
  // Size of the archive so far, including the members' data.
  int64_t position() const { return position_; }

 private:
  struct Member {
    std::string name;
    int64_t begin = 0;  // Offset of its header.
    int64_t size = 0;
    uint32_t crc32 = 0;
    bool wide() const;            // Needs zip64.
    int64_t zip64_bytes() const;  // Of that field, or 0.
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
  int64_t begin = 0;  // Offset of its data, from the start of the archive.
  int64_t size = 0;
  uint32_t crc32 = 0;
  bool summed = true;  // False: the archive has no checksums, and `crc32` is unspecified.
};

// Reads bytes [begin, begin + size) of the archive into `out`, all or an error.
using ReadAt = std::function<absl::Status(int64_t begin, int64_t size, void* out)>;
ReadAt ReadAtOf(absl::string_view bytes);  // `bytes` must outlive it.

// Checksum of bytes [begin, begin + size), read in pieces.
absl::StatusOr<uint32_t> Crc32Of(const ReadAt& read, int64_t begin, int64_t size);

// The members of an archive of `size` bytes, validated: within the archive, not overlapping, with UTF-8
// names. Contents are not read. torch.serialization.set_crc32_options(False) produces archives in which every
// checksum is 0.
absl::StatusOr<std::vector<ZipMember>> ReadZip(int64_t size, const ReadAt& read);

// The content of a member of at most `limit` bytes, verified with its checksum if it has one. REQUIRES:
// `member` is of the archive.
absl::StatusOr<std::string> ReadZipMember(const ZipMember& member, const ReadAt& read, int64_t limit);

}  // namespace fsdpd

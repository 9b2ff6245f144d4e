#include "fsdp/checkpoint/format/zip.h"

#include <absl/strings/str_cat.h>
#include <string.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/pickle.h"

namespace fsdpd {
namespace {

constexpr uint32_t kHeaderMark = 0x04034b50, kDescriptorMark = 0x08074b50, kEntryMark = 0x02014b50;
constexpr uint32_t kEnd64Mark = 0x06064b50, kLocatorMark = 0x07064b50, kEndMark = 0x06054b50;
constexpr int64_t kHeaderBytes = 30, kEntryBytes = 46, kEnd64Bytes = 56, kLocatorBytes = 20, kEndBytes = 22;
constexpr uint16_t kSizesFollow = 1 << 3, kUtf8 = 1 << 11;
constexpr uint64_t kNarrow = 0xffffffff;  // Marks a 32-bit field whose value is in the zip64 field.
constexpr uint16_t kZip64Field = 1;
constexpr int64_t kAlignment = 64;
// torch.save writes one member per storage; a model in one file has thousands.
constexpr int64_t kMaxMembers = 1 << 20, kMaxDirectoryBytes = 256 << 20;
constexpr int64_t kCrc32Bytes = 4 << 20;  // Read at a time.

int64_t Load(absl::string_view bytes, size_t at, int width) {
  int64_t value = 0;
  memcpy(&value, bytes.data() + at, width);
  return value;
}

absl::Status Bad(int64_t at, absl::string_view what) {
  return absl::DataLossError(absl::StrCat("zip, byte ", at, ": ", what));
}

bool Wide(int64_t number) { return static_cast<uint64_t>(number) >= kNarrow; }

uint64_t Narrow(int64_t number) { return std::min(static_cast<uint64_t>(number), kNarrow); }

}  // namespace

// --- Writing ---

int64_t ZipWriter::Member::zip64_bytes() const {
  return wide() ? 4 + (Wide(size) ? 16 : 0) + (Wide(begin) ? 8 : 0) : 0;
}

bool ZipWriter::Member::wide() const { return Wide(size) || Wide(begin); }

void ZipWriter::Append(absl::string_view bytes) {
  made_.append(bytes.data(), bytes.size());
  position_ += static_cast<int64_t>(bytes.size());
}

void ZipWriter::Append(uint64_t value, int width) {
  Append(absl::string_view(reinterpret_cast<const char*>(&value), width));
}

void ZipWriter::AppendZip64(const Member& member) {
  if (!member.wide()) return;
  Append(kZip64Field, 2);
  Append(member.zip64_bytes() - 4, 2);
  if (Wide(member.size)) {
    Append(member.size, 8);
    Append(member.size, 8);
  }
  if (Wide(member.begin)) Append(member.begin, 8);
}

void ZipWriter::Begin(absl::string_view name, int64_t size) {
  const Member member = {std::string(name), position_, size, 0};
  const int64_t fields = member.zip64_bytes() + 4;
  const int64_t data = position_ + kHeaderBytes + static_cast<int64_t>(name.size()) + fields;
  const int64_t padding = (kAlignment - data % kAlignment) % kAlignment;
  Append(kHeaderMark, 4);
  Append(0, 2);
  Append(kUtf8 | (size > 0 ? kSizesFollow : 0), 2);
  Append(0, 2);  // Stored.
  Append(0, 4);  // No date.
  Append(0, 8);  // Checksum and size follow the data.
  Append(0, 4);
  Append(name.size(), 2);
  Append(fields + padding, 2);
  Append(name);
  AppendZip64(member);
  Append("FB");
  Append(padding, 2);
  Append(std::string(padding, 'Z'));
  members_.push_back(member);
  position_ += size;
}

void ZipWriter::End(uint32_t crc32) {
  Member& member = members_.back();
  member.crc32 = crc32;
  if (member.size == 0) return;
  Append(kDescriptorMark, 4);
  Append(crc32, 4);
  Append(member.size, member.wide() ? 8 : 4);
  Append(member.size, member.wide() ? 8 : 4);
}

void ZipWriter::Add(absl::string_view name, absl::string_view content) {
  Begin(name, static_cast<int64_t>(content.size()));
  made_.append(content.data(), content.size());
  End(Crc32(content.data(), static_cast<int64_t>(content.size())));
}

void ZipWriter::AppendEntry(const Member& member) {
  Append(kEntryMark, 4);
  Append(0, 4);
  Append(kUtf8 | (member.size > 0 ? kSizesFollow : 0), 2);
  Append(0, 2);
  Append(0, 4);
  Append(member.crc32, 4);
  Append(Narrow(member.size), 4);
  Append(Narrow(member.size), 4);
  Append(member.name.size(), 2);
  Append(member.zip64_bytes(), 2);
  Append(0, 2);  // No comment.
  Append(0, 8);  // First disk; no attributes.
  Append(Narrow(member.begin), 4);
  Append(member.name);
  AppendZip64(member);
}

void ZipWriter::Finish() {
  const int64_t begin = position_;
  for (const Member& member : members_) AppendEntry(member);
  const int64_t size = position_ - begin, end = position_;
  Append(kEnd64Mark, 4);
  Append(kEnd64Bytes - 12, 8);
  Append(0x031e, 2);  // Created on Unix, version 3.0.
  Append(0x002d, 2);  // Requires version 4.5: zip64.
  Append(0, 8);
  Append(members_.size(), 8);
  Append(members_.size(), 8);
  Append(size, 8);
  Append(begin, 8);
  Append(kLocatorMark, 4);
  Append(0, 4);
  Append(end, 8);
  Append(1, 4);
  Append(kEndMark, 4);
  Append(0, 4);
  Append(std::min<uint64_t>(members_.size(), 0xffff), 2);
  Append(std::min<uint64_t>(members_.size(), 0xffff), 2);
  Append(Narrow(size), 4);
  Append(Narrow(begin), 4);
  Append(0, 2);
}

std::string ZipWriter::Take() { return std::exchange(made_, std::string()); }

// --- Reading ---

namespace {

struct Directory {
  int64_t begin = 0, size = 0, members = 0;
};

absl::StatusOr<std::string> Piece(const ReadAt& read, int64_t begin, int64_t size) {
  std::string bytes(size, '\0');
  FSDPD_RETURN_IF_ERROR(read(begin, size, bytes.data()));
  return bytes;
}

absl::StatusOr<Directory> FindDirectory(int64_t size, const ReadAt& read) {
  if (size < kEndBytes)
    return Bad(0, absl::StrCat("archive is too short (want at least ", kEndBytes, " bytes)"));
  const int64_t end_at = size - kEndBytes;
  FSDPD_ASSIGN_OR_RETURN(const std::string end, Piece(read, end_at, kEndBytes));
  if (Load(end, 0, 4) != kEndMark) return Bad(end_at, "end of central directory not found");
  if (Load(end, 4, 4) != 0 || Load(end, 20, 2) != 0)
    return Bad(end_at, "multiple disks and archive comments are not supported");
  Directory directory = {Load(end, 16, 4), Load(end, 12, 4), Load(end, 10, 2)};
  int64_t limit = end_at;
  if (size >= kEndBytes + kLocatorBytes + kEnd64Bytes) {
    const int64_t locator_at = end_at - kLocatorBytes;
    FSDPD_ASSIGN_OR_RETURN(const std::string locator, Piece(read, locator_at, kLocatorBytes));
    if (Load(locator, 0, 4) == kLocatorMark) {
      const int64_t end64_at = locator_at - kEnd64Bytes;
      FSDPD_ASSIGN_OR_RETURN(const std::string end64, Piece(read, end64_at, kEnd64Bytes));
      if (Load(locator, 8, 8) != end64_at || Load(end64, 0, 4) != kEnd64Mark) {
        return Bad(locator_at, "zip64 locator does not point to the zip64 end record");
      }
      directory = {Load(end64, 48, 8), Load(end64, 40, 8), Load(end64, 32, 8)};
      limit = end64_at;
    }
  }
  if (directory.begin < 0 || directory.size < 0 || directory.size > kMaxDirectoryBytes ||
      directory.begin > limit || directory.size != limit - directory.begin) {
    return Bad(end_at, "central directory does not end here");
  }
  if (directory.members < 0 || directory.members > kMaxMembers) return Bad(end_at, "too many members");
  return directory;
}

// A field of an entry whose value may be in the zip64 field; `wide` is the unread part of that field.
absl::Status Widen(int64_t at, absl::string_view* wide, int64_t* number) {
  if (static_cast<uint64_t>(*number) != kNarrow) return absl::OkStatus();
  if (wide->size() < 8) return Bad(at, "zip64 field lacks a value");
  *number = Load(*wide, 0, 8);
  wide->remove_prefix(8);
  return *number >= 0 ? absl::OkStatus() : Bad(at, "size or offset is out of range");
}

// The content of the zip64 field, or empty.
absl::StatusOr<absl::string_view> FindZip64(int64_t at, absl::string_view fields) {
  while (fields.size() >= 4) {
    const size_t size = Load(fields, 2, 2);
    if (size > fields.size() - 4) return Bad(at, "truncated extra field");
    if (Load(fields, 0, 2) == kZip64Field) return fields.substr(4, size);
    fields.remove_prefix(4 + size);
  }
  return absl::string_view();
}

// Pops the entry at the front of `rest`; `begin` is then the position of its header.
absl::StatusOr<ZipMember> TakeEntry(int64_t at, absl::string_view* rest) {
  if (rest->size() < kEntryBytes || Load(*rest, 0, 4) != kEntryMark)
    return Bad(at, "not a central directory entry");
  const size_t name_size = Load(*rest, 28, 2), fields_size = Load(*rest, 30, 2);
  const size_t size = kEntryBytes + name_size + fields_size;
  if (size > rest->size()) return Bad(at, "truncated central directory entry");
  if ((Load(*rest, 8, 2) & ~(kSizesFollow | kUtf8)) != 0)
    return Bad(at, "encrypted members are not supported");
  if (Load(*rest, 10, 2) != 0) return Bad(at, "compressed members are not supported");
  if (Load(*rest, 32, 2) != 0 || Load(*rest, 34, 2) != 0)
    return Bad(at, "member comments and multiple disks are not supported");
  ZipMember member;
  member.name = std::string(rest->substr(kEntryBytes, name_size));
  if (!IsUtf8(member.name)) return Bad(at, "member name is not UTF-8");
  member.crc32 = static_cast<uint32_t>(Load(*rest, 16, 4));
  member.size = Load(*rest, 24, 4);
  member.begin = Load(*rest, 42, 4);
  auto packed = Load(*rest, 20, 4);
  FSDPD_ASSIGN_OR_RETURN(absl::string_view wide,
                         FindZip64(at, rest->substr(kEntryBytes + name_size, fields_size)));
  FSDPD_RETURN_IF_ERROR(Widen(at, &wide, &member.size));
  FSDPD_RETURN_IF_ERROR(Widen(at, &wide, &packed));
  FSDPD_RETURN_IF_ERROR(Widen(at, &wide, &member.begin));
  if (packed != member.size) return Bad(at, "compressed and uncompressed size of a stored member differ");
  rest->remove_prefix(size);
  return member;
}

// Replaces the position of a member's header by that of its data. `limit`: start of the central directory.
absl::Status FindBytes(const ReadAt& read, int64_t limit, ZipMember* member) {
  const int64_t at = member->begin;
  if (at > limit - kHeaderBytes)
    return Bad(at, absl::StrCat(member->name, " starts in the central directory or after it"));
  FSDPD_ASSIGN_OR_RETURN(const std::string header, Piece(read, at, kHeaderBytes));
  if (Load(header, 0, 4) != kHeaderMark || Load(header, 8, 2) != 0) {
    return Bad(at, absl::StrCat("no local header of ", member->name));
  }
  const auto name_size = Load(header, 26, 2);
  member->begin += kHeaderBytes + name_size + Load(header, 28, 2);
  if (member->begin > limit || member->size > limit - member->begin) {
    return Bad(at, absl::StrCat(member->name, " ends in the central directory or after it"));
  }
  FSDPD_ASSIGN_OR_RETURN(const std::string name, Piece(read, at + kHeaderBytes, name_size));
  return name == member->name ? absl::OkStatus()
                              : Bad(at, absl::StrCat("local header is not of ", member->name));
}

absl::Status CheckApart(const std::vector<ZipMember>& members) {
  std::vector<const ZipMember*> sorted;
  for (const ZipMember& member : members) sorted.push_back(&member);
  std::sort(sorted.begin(), sorted.end(),
            [](const ZipMember* a, const ZipMember* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i]->begin < sorted[i - 1]->begin + sorted[i - 1]->size + kHeaderBytes) {
      return Bad(sorted[i]->begin, absl::StrCat(sorted[i]->name, " overlaps ", sorted[i - 1]->name));
    }
  }
  return absl::OkStatus();
}

}  // namespace

ReadAt ReadAtOf(absl::string_view bytes) {
  return [bytes](int64_t begin, int64_t size, void* out) {
    FSDPD_CHECK(begin >= 0 && size >= 0 && begin <= static_cast<int64_t>(bytes.size()) - size);
    memcpy(out, bytes.data() + begin, size);
    return absl::OkStatus();
  };
}

absl::StatusOr<std::vector<ZipMember>> ReadZip(int64_t size, const ReadAt& read) {
  FSDPD_ASSIGN_OR_RETURN(const Directory directory, FindDirectory(size, read));
  FSDPD_ASSIGN_OR_RETURN(const std::string entries, Piece(read, directory.begin, directory.size));
  absl::string_view rest = entries;
  std::vector<ZipMember> members;
  for (int64_t i = 0; i < directory.members; ++i) {
    const int64_t at = directory.begin + directory.size - static_cast<int64_t>(rest.size());
    FSDPD_ASSIGN_OR_RETURN(ZipMember member, TakeEntry(at, &rest));
    FSDPD_RETURN_IF_ERROR(FindBytes(read, directory.begin, &member));
    members.push_back(std::move(member));
  }
  if (!rest.empty()) return Bad(directory.begin, "central directory has data after its last entry");
  FSDPD_RETURN_IF_ERROR(CheckApart(members));
  const auto plain = [](const ZipMember& member) { return member.crc32 == 0; };
  const auto empty = [](const ZipMember& member) { return member.size == 0; };
  if (std::all_of(members.begin(), members.end(), plain) &&
      !std::all_of(members.begin(), members.end(), empty)) {
    for (ZipMember& member : members) member.summed = false;
  }
  return members;
}

absl::StatusOr<uint32_t> Crc32Of(const ReadAt& read, int64_t begin, int64_t size) {
  std::vector<char> bytes(std::min(size, kCrc32Bytes));
  uint32_t crc32 = 0;
  for (int64_t done = 0; done < size; done += kCrc32Bytes) {
    const int64_t count = std::min(size - done, kCrc32Bytes);
    FSDPD_RETURN_IF_ERROR(read(begin + done, count, bytes.data()));
    crc32 = Crc32(bytes.data(), count, crc32);
  }
  return crc32;
}

absl::StatusOr<std::string> ReadZipMember(const ZipMember& member, const ReadAt& read, int64_t limit) {
  if (member.size > limit) {
    return Bad(member.begin, absl::StrCat(member.name, " is too large (got ", member.size,
                                          " bytes, want at most ", limit, ")"));
  }
  FSDPD_ASSIGN_OR_RETURN(std::string bytes, Piece(read, member.begin, member.size));
  if (member.summed && Crc32(bytes.data(), member.size) != member.crc32) {
    return Bad(member.begin, absl::StrCat("checksum mismatch in ", member.name));
  }
  return bytes;
}

}  // namespace fsdpd

#include "fsdp/checkpoint/dcp/dcp_record.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>
#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/tensor_store.h"

namespace fsdpd {
namespace {

// Covers what precedes and follows a tensor's data, except with extremely long names.
constexpr int64_t kEndBytes = 4096;
// A gap between two runs up to kMaxGap is cheaper to read than to skip; kMaxSpan is the most to read at a
// time.
constexpr int64_t kMaxGap = 32 << 10, kMaxSpan = 8 << 20;

// The intersection of two rectangles, empty in some dimension if they do not intersect.
Rectangle Common(const Rectangle& a, const Rectangle& b) {
  Rectangle common;
  for (size_t d = 0; d < a.sizes.size(); ++d) {
    const int64_t begin = std::max(a.offsets[d], b.offsets[d]);
    const int64_t end = std::min(a.offsets[d] + a.sizes[d], b.offsets[d] + b.sizes[d]);
    common.offsets.push_back(begin);
    common.sizes.push_back(std::max<int64_t>(end - begin, 0));
  }
  return common;
}

}  // namespace

absl::StatusOr<DcpRecord> DcpRecord::Open(std::shared_ptr<const InputFile> file, const DcpPlace& place) {
  FSDPD_CHECK(place.begin >= 0 && place.bytes >= 0 && place.begin <= file->size() - place.bytes);
  DcpRecord record(std::move(file), place);
  record.head_.resize(std::min(place.bytes, kEndBytes));
  record.tail_.resize(std::min(place.bytes - static_cast<int64_t>(record.head_.size()), kEndBytes));
  FSDPD_RETURN_IF_ERROR(
      record.file_->Read(place.begin, static_cast<int64_t>(record.head_.size()), record.head_.data()));
  const auto tail_bytes = static_cast<int64_t>(record.tail_.size());
  FSDPD_RETURN_IF_ERROR(
      record.file_->Read(place.begin + place.bytes - tail_bytes, tail_bytes, record.tail_.data()));
  return record;
}

ReadAt DcpRecord::Reader() const {
  return [this](int64_t begin, int64_t size, void* out) -> absl::Status {
    FSDPD_CHECK(begin >= 0 && size >= 0 && begin <= place_.bytes - size);
    const int64_t tail_begin = place_.bytes - static_cast<int64_t>(tail_.size());
    if (begin + size <= static_cast<int64_t>(head_.size())) {
      memcpy(out, head_.data() + begin, size);
    } else if (begin >= tail_begin) {
      memcpy(out, tail_.data() + (begin - tail_begin), size);
    } else {
      return file_->Read(place_.begin + begin, size, out);
    }
    return absl::OkStatus();
  };
}

absl::Status DcpRecord::Located(const absl::Status& status) const {
  if (status.ok()) return status;
  // Read errors of the file start with its path.
  const absl::string_view what = absl::StripPrefix(status.message(), absl::StrCat(file_->path(), ": "));
  return absl::Status(status.code(), absl::StrCat(file_->path(), ": record at byte ", place_.begin, ": ",
                                                  Escaped(std::string(what))));
}

absl::StatusOr<SavedTensor> DcpRecord::OpenChunk(const DcpTensor& tensor, const DcpChunk& chunk) const {
  const absl::StatusOr<SavedTensor> saved = ReadSavedTensor(place_.bytes, Reader());
  if (!saved.ok()) return Located(saved.status());
  if (saved->type == tensor.type && saved->shape == chunk.at.sizes) return saved;
  return Located(absl::DataLossError(absl::StrCat("wrong tensor (got ", saved->type->name, " ",
                                                  ShapeText(saved->shape), ", want ", tensor.type_name, " ",
                                                  ShapeText(chunk.at.sizes), " of ", tensor.name, ")")));
}

absl::StatusOr<Pickle> DcpRecord::ReadValue() const {
  absl::StatusOr<Pickle> value = ReadSavedValue(place_.bytes, Reader());
  if (!value.ok()) return Located(value.status());
  return value;
}

absl::Status DcpRecord::ReadPart(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                                 char* out) const {
  return saved.row_major() ? ReadRuns(saved, chunk, wanted, out) : ReadStrided(saved, chunk, wanted, out);
}

absl::Status DcpRecord::ReadRuns(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                                 char* out) const {
  const Rectangle part = Common(chunk, wanted);
  if (part.elements() == 0) return absl::OkStatus();
  const int64_t width = saved.type->bytes;
  const int64_t data = place_.begin + saved.storage.begin + saved.first * width;
  const bool whole = part.sizes == chunk.sizes && chunk.elements() * width == saved.storage.size;
  uint32_t crc32 = 0;
  std::vector<char> scratch;
  struct Run {
    int64_t from, to;  // Byte range.
  };
  std::vector<Run> span;
  Runs runs(part, chunk, wanted);
  const int64_t length = runs.length() * width;
  for (bool more = true; more;) {
    span.clear();
    do {
      span.push_back({runs.from() * width, runs.to() * width});
      more = runs.Next();
    } while (more && runs.from() * width - (span.back().from + length) <= kMaxGap &&
             runs.from() * width + length - span.front().from <= kMaxSpan);
    const int64_t begin = span.front().from, bytes = span.back().from + length - begin;
    char* to = out + span.front().to;
    if (span.size() > 1) {
      scratch.resize(bytes);
      to = scratch.data();
    }
    FSDPD_RETURN_IF_ERROR(file_->Read(data + begin, bytes, to));
    if (whole) crc32 = Crc32(to, bytes, crc32);
    if (span.size() == 1) continue;
    for (const Run& run : span) memcpy(out + run.to, to + (run.from - begin), length);
  }
  if (!whole || !saved.storage.summed || crc32 == saved.storage.crc32) return absl::OkStatus();
  return Located(absl::DataLossError("tensor data does not match its checksum"));
}

absl::Status DcpRecord::ReadStrided(const SavedTensor& saved, const Rectangle& chunk, const Rectangle& wanted,
                                    char* out) const {
  const Rectangle part = Common(chunk, wanted);
  if (part.elements() == 0) return absl::OkStatus();
  const int64_t width = saved.type->bytes;
  std::vector<char> storage(saved.storage.size);
  FSDPD_RETURN_IF_ERROR(file_->Read(place_.begin + saved.storage.begin, saved.storage.size, storage.data()));
  if (saved.storage.summed && Crc32(storage.data(), saved.storage.size) != saved.storage.crc32) {
    return Located(absl::DataLossError("tensor data does not match its checksum"));
  }
  std::vector<int64_t> at = part.offsets;
  for (bool more = true; more;) {
    int64_t from = saved.first;
    for (size_t d = 0; d < at.size(); ++d) from += (at[d] - chunk.offsets[d]) * saved.strides[d];
    memcpy(out + Runs::NumberIn(wanted, at) * width, storage.data() + from * width, width);
    more = false;
    for (size_t d = at.size(); d > 0 && !more; --d) {
      more = ++at[d - 1] < part.offsets[d - 1] + part.sizes[d - 1];
      if (!more) at[d - 1] = part.offsets[d - 1];
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> DcpRecord::CheckMembers() const {
  const ReadAt read = Reader();
  const absl::StatusOr<std::vector<ZipMember>> members = ReadZip(place_.bytes, read);
  if (!members.ok()) return Located(members.status());
  for (const ZipMember& member : *members) {
    if (!member.summed) return false;
    FSDPD_ASSIGN_OR_RETURN(const uint32_t crc32, Crc32Of(read, member.begin, member.size));
    if (crc32 != member.crc32) {
      return Located(absl::DataLossError(absl::StrCat(member.name, " does not match its checksum")));
    }
  }
  return true;
}

}  // namespace fsdpd

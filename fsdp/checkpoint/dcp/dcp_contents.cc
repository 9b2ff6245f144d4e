#include "fsdp/checkpoint/dcp/dcp_contents.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <memory>
#include <utility>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_metadata.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr int64_t kMaxSumsBytes = 64 << 20;  // One line per file.

absl::Status LoadSums(const std::string& directory, DcpContents* contents) {
  const absl::StatusOr<std::string> text =
      ReadInputFile(absl::StrCat(directory, "/", kDcpSumsName), kMaxSumsBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();  // Not written by fsdpd.
  if (!text.ok() && !IsDefectOfCheckpoint(text.status())) return text.status();
  const absl::StatusOr<DcpSums> sums = text.ok() ? ParseSums(*text) : text.status();
  if (sums.ok()) {
    contents->sums = *sums;
  } else {
    contents->violations.Add(kDcpSumsName, std::string(sums.status().message()));
  }
  return absl::OkStatus();
}

absl::Status CheckFile(const std::string& directory, size_t number, DcpContents* contents) {
  const std::string& name = contents->index.files[number];
  if (!IsPlainFileName(name)) return absl::OkStatus();  // CheckIndex() reports it.
  const std::string path = absl::StrCat(directory, "/", name);
  const absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
  if (!file.ok()) {
    if (!IsDefectOfCheckpoint(file.status())) return file.status();
    contents->violations.Add(name, WithoutPath(file.status(), path));
    return absl::OkStatus();
  }
  contents->file_bytes[number] = (*file)->size();
  if (!contents->sums.has_value()) return absl::OkStatus();
  const auto sum = contents->sums->find(name);
  if (sum == contents->sums->end()) {
    contents->violations.Add(name, "has no checksum, but other files have one");
  } else if (sum->second.bytes != (*file)->size()) {
    contents->violations.Add(name, absl::StrCat("wrong file size (got ", (*file)->size(), " bytes, want ",
                                                sum->second.bytes, " as committed)"));
  }
  return absl::OkStatus();
}

void CheckEnd(const std::string& name, const DcpPlace& place, DcpContents* contents) {
  if (place.file < 0 || place.begin < 0 || place.bytes <= 0) return;  // CheckIndex() reports it.
  const int64_t there = contents->file_bytes[place.file];
  if (there < 0 || (place.begin <= there && place.bytes <= there - place.begin)) return;
  contents->violations.Add(
      name, absl::StrCat("record of ", place.bytes, " bytes at byte ", place.begin, " of ",
                         contents->index.files[place.file], " is truncated: the file has ", there, " bytes"));
}

}  // namespace

std::string WithoutPath(const absl::Status& status, const std::string& path) {
  return std::string(absl::StripPrefix(status.message(), absl::StrCat(path, ": ")));
}

bool IsDefectOfCheckpoint(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsNotFound(status) || absl::IsInvalidArgument(status) ||
         absl::IsUnimplemented(status);
}

absl::StatusOr<DcpContents> LoadContents(const std::string& directory) {
  DcpContents contents;
  FSDPD_RETURN_IF_ERROR(LoadSums(directory, &contents));
  FSDPD_ASSIGN_OR_RETURN(std::string metadata,
                         ReadInputFile(absl::StrCat(directory, "/", kDcpMetadataName), PickleLimits().bytes));
  if (contents.sums.has_value()) {
    const auto bytes = static_cast<int64_t>(metadata.size());
    const auto sum = contents.sums->find(kDcpMetadataName);
    if (sum == contents.sums->end() || sum->second.bytes != bytes ||
        sum->second.crc32 != Crc32(metadata.data(), bytes)) {
      contents.violations.Add(kDcpMetadataName, "checksum does not match the committed one");
    }
  }
  absl::StatusOr<DcpIndex> index = ReadMetadata(std::move(metadata));
  if (!index.ok()) {
    return absl::Status(index.status().code(),
                        absl::StrCat(directory, "/", kDcpMetadataName, ": ", index.status().message()));
  }
  contents.index = *std::move(index);
  contents.file_bytes.assign(contents.index.files.size(), -1);
  for (size_t i = 0; i < contents.index.files.size(); ++i) {
    FSDPD_RETURN_IF_ERROR(CheckFile(directory, i, &contents));
  }
  for (const DcpTensor& tensor : contents.index.tensors) {
    for (const DcpChunk& chunk : tensor.chunks) {
      if (!IsEmpty(chunk.at)) CheckEnd(tensor.name, chunk.place, &contents);
    }
  }
  for (const DcpValue& value : contents.index.values) CheckEnd(value.name, value.place, &contents);
  contents.violations.Add(CheckIndex(contents.index));
  return contents;
}

}  // namespace fsdpd

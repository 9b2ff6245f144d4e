#include "fsdp/checkpoint/dcp/dcp_reader.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "fsdp/checkpoint/dcp/dcp_record.h"
#include "fsdp/checkpoint/format/torch_save.h"

namespace fsdpd {
namespace {

constexpr size_t kMaxOpenFiles = 64;  // The limit of a process is often 1024.

}  // namespace

DcpReader::DcpReader(std::string directory, DcpContents contents)
    : directory_(std::move(directory)), contents_(std::move(contents)) {
  std::vector<StoredTensor> tensors;
  for (const DcpTensor& tensor : index().tensors) {
    // CheckIndex() has established that the type is known and the size does not overflow.
    tensors.push_back({tensor.name, tensor.type, tensor.shape, *BytesOf(*tensor.type, tensor.shape)});
  }
  SetTensors(std::move(tensors));  // Sorted already.
}

absl::StatusOr<std::unique_ptr<DcpReader>> DcpReader::Open(const std::string& directory) {
  FSDPD_ASSIGN_OR_RETURN(DcpContents contents, LoadContents(directory));
  if (!contents.violations.empty()) {
    const DcpViolation& first = contents.violations[0];
    const int64_t more = contents.violations.count() - 1;
    return absl::DataLossError(absl::StrCat(
        directory, ": ", first.where, ": ", first.what,
        more > 0 ? absl::StrCat("; and ", more, more == 1 ? " more error" : " more errors") : ""));
  }
  return std::unique_ptr<DcpReader>(new DcpReader(directory, std::move(contents)));
}

const DcpTensor* DcpReader::FindTensor(const std::string& name) const {
  const int64_t found = Find(name);
  return found < 0 ? nullptr : &index().tensors[found];
}

const DcpValue* DcpReader::FindValue(const std::string& name) const {
  const std::vector<DcpValue>& values = index().values;
  const auto found =
      std::lower_bound(values.begin(), values.end(), name,
                       [](const DcpValue& value, const std::string& of) { return value.name < of; });
  return found != values.end() && found->name == name ? &*found : nullptr;
}

absl::Status DcpReader::Read(const DcpTensor& tensor, const Rectangle& part, void* out) const {
  for (const DcpChunk& chunk : tensor.chunks) {
    if (IsEmpty(chunk.at) || IsEmpty(part) || !Overlap(chunk.at, part)) continue;
    FSDPD_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, OpenFile(chunk.place.file));
    FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(std::move(file), chunk.place));
    FSDPD_ASSIGN_OR_RETURN(const SavedTensor saved, record.OpenChunk(tensor, chunk));
    FSDPD_RETURN_IF_ERROR(record.ReadPart(saved, chunk.at, part, static_cast<char*>(out)));
  }
  return absl::OkStatus();
}

absl::Status DcpReader::ReadRun(const DcpTensor& tensor, int64_t begin, int64_t elements, void* out) const {
  auto* at = static_cast<char*>(out);
  for (const Rectangle& part : RectanglesOf(tensor.shape, begin, elements)) {
    FSDPD_RETURN_IF_ERROR(Read(tensor, part, at));
    at += part.elements() * tensor.type->bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<Pickle> DcpReader::ReadValue(const DcpValue& value) const {
  FSDPD_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file, OpenFile(value.place.file));
  FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(std::move(file), value.place));
  return record.ReadValue();
}

absl::StatusOr<std::shared_ptr<const InputFile>> DcpReader::OpenFile(int number) const {
  {
    MutexLock lock(&mutex_);
    if (const auto found = open_.find(number); found != open_.end()) return found->second;
  }
  FSDPD_ASSIGN_OR_RETURN(std::shared_ptr<const InputFile> file,
                         InputFile::Open(absl::StrCat(directory_, "/", contents_.index.files[number])));
  if (file->size() != contents_.file_bytes[number]) {
    return absl::DataLossError(
        absl::StrCat(file->path(), ": size changed after the checkpoint was opened (got ", file->size(),
                     " bytes, want ", contents_.file_bytes[number], ")"));
  }
  MutexLock lock(&mutex_);
  if (open_.size() >= kMaxOpenFiles) open_.clear();  // Files in use stay open.
  open_[number] = file;
  return file;
}

}  // namespace fsdpd

#include "client/commands/ckpt_report.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/spec_text/located_violation.h"
#include "fsdp/checkpoint/convert/open_store.h"
#include "fsdp/checkpoint/dcp/dcp_contents.h"
#include "fsdp/checkpoint/dcp/dcp_record.h"
#include "fsdp/checkpoint/dcp/dcp_verify.h"
#include "fsdp/checkpoint/format/pickle.h"
#include "fsdp/checkpoint/hf/hf_contents.h"
#include "fsdp/checkpoint/hf/hf_store.h"

namespace fsdpd {
namespace {

// More threads do not increase the throughput of a disk.
constexpr unsigned kMaxThreads = 8;

// Describes a value. Adds a defect if its record is damaged, unless verification has reported the same
// record.
absl::StatusOr<std::string> ContentOf(const std::string& directory, const DcpContents& contents,
                                      const DcpValue& value, DcpViolations* violations) {
  const int file = value.place.file;
  const bool whole = file >= 0 && value.place.begin >= 0 && value.place.bytes > 0 &&
                     value.place.transform.empty() && value.place.begin <= contents.file_bytes[file] &&
                     value.place.bytes <= contents.file_bytes[file] - value.place.begin;
  if (!whole) return "?";  // LoadContents() has reported this defect.
  const auto read = [&]() -> absl::StatusOr<std::string> {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> input,
                           InputFile::Open(absl::StrCat(directory, "/", contents.index.files[file])));
    if (input->size() != contents.file_bytes[file])
      return absl::DataLossError("the file changed while it was read");
    FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(std::move(input), value.place));
    FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, record.ReadValue());
    return DescribePickled(pickle.root());
  };
  const absl::StatusOr<std::string> content = read();
  if (content.ok()) return *content;
  if (absl::IsUnimplemented(content.status())) return "not read";
  if (!IsDefectOfCheckpoint(content.status())) return content.status();
  const bool is_known =
      std::any_of(violations->begin(), violations->end(),
                  [&](const DcpViolation& violation) { return violation.where == Escaped(value.name); });
  if (!is_known) violations->Add(value.name, std::string(content.status().message()));
  return "?";
}

void AddViolations(const DcpViolations& violations, v1::CheckpointReport* checkpoint) {
  for (const DcpViolation& violation : violations) {
    v1::CheckpointError* proto = checkpoint->add_errors();
    proto->set_where(ToUtf8(violation.where));
    proto->set_error(ToUtf8(violation.what));
  }
  checkpoint->set_errors_omitted(violations.left_out());
}

void AddTensor(const DcpContents& contents, const DcpTensor& tensor, v1::CheckpointReport* checkpoint) {
  v1::CheckpointTensor* proto = checkpoint->add_tensors();
  proto->set_name(tensor.name);
  proto->set_type(tensor.type_name);
  proto->mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
  proto->set_bytes(tensor.type == nullptr ? 0 : BytesOf(*tensor.type, tensor.shape).value_or(0));
  for (const DcpChunk& chunk : tensor.chunks) {
    v1::CheckpointChunk* part = proto->add_chunks();
    part->mutable_offsets()->Add(chunk.at.offsets.begin(), chunk.at.offsets.end());
    part->mutable_sizes()->Add(chunk.at.sizes.begin(), chunk.at.sizes.end());
    if (chunk.place.file >= 0) part->set_file(contents.index.files[chunk.place.file]);
    part->set_begin(chunk.place.begin);
    part->set_bytes(chunk.place.bytes);
  }
}

absl::StatusOr<v1::CheckpointReport> ToProto(const std::string& directory, const DcpContents& contents,
                                             DcpViolations violations) {
  v1::CheckpointReport checkpoint;
  checkpoint.set_path(ToUtf8(directory));
  checkpoint.set_has_checksums(contents.sums.has_value());
  for (size_t i = 0; i < contents.index.files.size(); ++i) {
    v1::CheckpointFile* file = checkpoint.add_files();
    file->set_name(contents.index.files[i]);
    file->set_bytes(contents.file_bytes[i]);
    checkpoint.set_bytes(checkpoint.bytes() + std::max<int64_t>(contents.file_bytes[i], 0));
  }
  for (const DcpTensor& tensor : contents.index.tensors) AddTensor(contents, tensor, &checkpoint);
  for (const DcpValue& value : contents.index.values) {
    v1::CheckpointValue* proto = checkpoint.add_values();
    proto->set_name(value.name);
    FSDPD_ASSIGN_OR_RETURN(std::string content, ContentOf(directory, contents, value, &violations));
    proto->set_content(std::move(content));
    if (value.place.file >= 0) proto->set_file(contents.index.files[value.place.file]);
    proto->set_bytes(value.place.bytes);
  }
  AddViolations(violations, &checkpoint);
  return checkpoint;
}

// A tensor of a safetensors file has a single chunk, and the format has no other kinds of entries.
v1::CheckpointReport ToProto(const std::string& directory, const HfContents& contents) {
  v1::CheckpointReport checkpoint;
  checkpoint.set_path(ToUtf8(directory));
  for (const HfFile& file : contents.files) {
    v1::CheckpointFile* proto = checkpoint.add_files();
    proto->set_name(file.name);
    proto->set_bytes(file.input == nullptr ? -1 : file.input->size());
    checkpoint.set_bytes(checkpoint.bytes() + std::max<int64_t>(proto->bytes(), 0));
  }
  for (const HfTensor& tensor : contents.tensors) {
    const SafetensorsEntry& entry = tensor.entry;
    v1::CheckpointTensor* proto = checkpoint.add_tensors();
    proto->set_name(entry.name);
    proto->set_type(entry.type == nullptr ? entry.type_name : std::string(entry.type->name));
    proto->mutable_shape()->Add(entry.shape.begin(), entry.shape.end());
    proto->set_bytes(entry.bytes);
    v1::CheckpointChunk* part = proto->add_chunks();
    for (size_t d = 0; d < entry.shape.size(); ++d) part->add_offsets(0);
    part->mutable_sizes()->Add(entry.shape.begin(), entry.shape.end());
    part->set_file(contents.files[tensor.file].name);
    part->set_begin(entry.begin);
    part->set_bytes(entry.bytes);
  }
  AddViolations(contents.violations, &checkpoint);
  return checkpoint;
}

absl::StatusOr<v1::CheckpointReport> MakeHfReport(const std::string& directory, bool verify,
                                                  const std::function<bool()>& stopped) {
  FSDPD_ASSIGN_OR_RETURN(HfContents contents, LoadHfContents(directory));
  if (verify) FSDPD_RETURN_IF_ERROR(ReadAllOf(&contents, CkptThreads(), stopped));
  v1::CheckpointReport checkpoint = ToProto(directory, contents);
  checkpoint.set_verified(verify);
  if (verify) checkpoint.set_records_without_checksum(checkpoint.tensors_size());
  return checkpoint;
}

}  // namespace

absl::StatusOr<v1::CheckpointReport> MakeReport(const std::string& directory, bool verify,
                                                const std::function<bool()>& stopped) {
  if (FormatOf(directory) == StoreFormat::kHf && HasHfWeights(directory))
    return MakeHfReport(directory, verify, stopped);
  if (!verify) {
    FSDPD_ASSIGN_OR_RETURN(const DcpContents contents, LoadContents(directory));
    return ToProto(directory, contents, contents.violations);
  }
  FSDPD_ASSIGN_OR_RETURN(const DcpVerdict verdict, VerifyDcp(directory, CkptThreads(), stopped));
  FSDPD_ASSIGN_OR_RETURN(v1::CheckpointReport checkpoint,
                         ToProto(directory, verdict.contents, verdict.violations));
  checkpoint.set_verified(true);
  checkpoint.set_records_without_checksum(verdict.unsummed_records);
  return checkpoint;
}

std::string ToUtf8(const std::string& text) {
  if (IsUtf8(text)) return text;
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x80 ? std::string(1, c) : absl::StrFormat("\\x%02x", byte);
  }
  return shown;
}

int CkptThreads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
}

}  // namespace fsdpd

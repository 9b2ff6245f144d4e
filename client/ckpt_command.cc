// fsdpctl ckpt: what is in a checkpoint (inspect), and whether it is whole (verify); convert and diff have
// files of their own. Reads folders itself; no coordinator is asked.
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/spec_fault.h"
#include "base/text.h"
#include "client/ckpt_commands.h"
#include "client/commands.h"
#include "client/message_output.h"
#include "client/outcome.h"
#include "client/text_table.h"
#include "fsdp/checkpoint/dcp_contents.h"
#include "fsdp/checkpoint/dcp_record.h"
#include "fsdp/checkpoint/dcp_verify.h"
#include "fsdp/checkpoint/pickle.h"
#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {
namespace {

// More keep a disk no busier.
constexpr unsigned kMaxThreads = 8;

// What a value is; where its record is damaged, a fault.
absl::StatusOr<std::string> ContentOf(const std::string& folder, const DcpContents& contents,
                                      const DcpValue& value, DcpFaults* faults) {
  const int file = value.place.file;
  const bool whole = file >= 0 && value.place.begin >= 0 && value.place.bytes > 0 &&
                     value.place.transform.empty() && value.place.begin <= contents.file_bytes[file] &&
                     value.place.bytes <= contents.file_bytes[file] - value.place.begin;
  if (!whole) return "?";  // Which is a fault of the contents.
  const auto read = [&]() -> absl::StatusOr<std::string> {
    FSDPD_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> input,
                           InputFile::Open(absl::StrCat(folder, "/", contents.index.files[file])));
    if (input->size() != contents.file_bytes[file]) return absl::DataLossError("its file changes now");
    FSDPD_ASSIGN_OR_RETURN(const DcpRecord record, DcpRecord::Open(std::move(input), value.place));
    FSDPD_ASSIGN_OR_RETURN(const Pickle pickle, record.ReadValue());
    return DescribePickled(pickle.root());
  };
  const absl::StatusOr<std::string> content = read();
  if (content.ok()) return *content;
  if (absl::IsUnimplemented(content.status())) return "not read";
  if (!IsFaultOfFile(content.status())) return content.status();
  faults->Add(value.name, std::string(content.status().message()));
  return "?";
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

absl::StatusOr<v1::CheckpointReport> ToProto(const std::string& folder, const DcpContents& contents,
                                             DcpFaults faults) {
  v1::CheckpointReport checkpoint;
  checkpoint.set_path(ShownText(folder));
  checkpoint.set_sums(contents.sums.has_value());
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
    FSDPD_ASSIGN_OR_RETURN(std::string content, ContentOf(folder, contents, value, &faults));
    proto->set_content(std::move(content));
    if (value.place.file >= 0) proto->set_file(contents.index.files[value.place.file]);
    proto->set_bytes(value.place.bytes);
  }
  for (const DcpFault& fault : faults) {
    v1::CheckpointFault* proto = checkpoint.add_faults();
    proto->set_where(ShownText(fault.where));
    proto->set_what(ShownText(fault.what));
  }
  checkpoint.set_faults_left_out(faults.left_out());
  return checkpoint;
}

std::string Summary(const v1::CheckpointReport& checkpoint) {
  return absl::StrCat(checkpoint.tensors_size(), checkpoint.tensors_size() == 1 ? " tensor" : " tensors",
                      " and ", checkpoint.values_size(), " other ",
                      checkpoint.values_size() == 1 ? "entry" : "entries", ", ",
                      HumanBytes(checkpoint.bytes()), " in ", checkpoint.files_size(),
                      checkpoint.files_size() == 1 ? " file" : " files");
}

std::string ContentsText(const v1::CheckpointReport& checkpoint, int width) {
  TextTable tensors({"TENSOR", "TYPE", "SHAPE", "CHUNKS", "BYTES"});
  for (const v1::CheckpointTensor& tensor : checkpoint.tensors()) {
    tensors.Add({Escaped(tensor.name()), Escaped(tensor.type()),
                 absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]"),
                 absl::StrCat(tensor.chunks_size()), HumanBytes(tensor.bytes())});
  }
  TextTable values({"ENTRY", "CONTENT", "BYTES"});
  for (const v1::CheckpointValue& value : checkpoint.values()) {
    values.Add({Escaped(value.name()), Escaped(value.content()), HumanBytes(value.bytes())});
  }
  return absl::StrCat(Summary(checkpoint), "\n\n",
                      checkpoint.tensors_size() > 0 ? tensors.Render(0, width) : "",
                      checkpoint.values_size() > 0 ? "\n" + values.Render(0, width) : "");
}

int Tell(const v1::CheckpointReport& checkpoint, const CommandLine& line, Console* console) {
  for (const v1::CheckpointFault& fault : checkpoint.faults()) {
    console->err << absl::StrCat(line.file, ": error: ", Escaped(fault.where()), ": ", Escaped(fault.what()),
                                 "\n");
  }
  if (checkpoint.faults_left_out() > 0) {
    console->err << absl::StrCat(line.file, ": error: and ", checkpoint.faults_left_out(), " more faults\n");
  }
  if (checkpoint.unsummed_records() > 0) {
    console->err << absl::StrCat(line.file, ": note: ", checkpoint.unsummed_records(),
                                 checkpoint.unsummed_records() == 1 ? " record has" : " records have",
                                 " no checksums: a damaged number in them would not be seen\n");
  }
  if (line.output != "table") {
    console->out << Rendered(checkpoint, line.output);
  } else if (line.action == "inspect") {
    console->out << ContentsText(checkpoint, console->width());
  } else if (checkpoint.faults().empty()) {
    console->out << Summary(checkpoint) << ": whole\n";
  }
  return checkpoint.faults().empty() ? kExitOk : kExitDamaged;
}

}  // namespace

std::string ShownText(const std::string& text) {
  if (IsUtf8(text)) return text;
  std::string shown;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x80 ? std::string(1, c) : absl::StrFormat("\\x%02x", byte);
  }
  return shown;
}

int FailCkpt(const absl::Status& status, Console* console) {
  if (absl::IsCancelled(status)) return kExitInterrupted;
  console->err << "fsdpctl: " << Escaped(std::string(status.message())) << "\n";
  return absl::IsDataLoss(status) ? kExitDamaged : kExitUsage;
}

bool IsInterrupted(const Console& console) {
  return console.interrupt != nullptr && console.interrupt->fired();
}

int CkptThreads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads));
}

int RunCkptCommand(const CommandLine& line, Console* console) {
  if (line.action == "convert") return RunCkptConvert(line, console);
  if (line.action == "diff") return RunCkptDiff(line, console);
  if (line.action == "inspect") {
    const absl::StatusOr<DcpContents> contents = LoadContents(line.file);
    if (!contents.ok()) return FailCkpt(contents.status(), console);
    const absl::StatusOr<v1::CheckpointReport> checkpoint = ToProto(line.file, *contents, contents->faults);
    return checkpoint.ok() ? Tell(*checkpoint, line, console) : FailCkpt(checkpoint.status(), console);
  }
  FSDPD_CHECK(line.action == "verify");
  const absl::StatusOr<DcpVerdict> verdict =
      VerifyDcp(line.file, CkptThreads(), [console] { return IsInterrupted(*console); });
  if (!verdict.ok()) return FailCkpt(verdict.status(), console);
  absl::StatusOr<v1::CheckpointReport> checkpoint = ToProto(line.file, verdict->contents, verdict->faults);
  if (!checkpoint.ok()) return FailCkpt(checkpoint.status(), console);
  checkpoint->set_verified(true);
  checkpoint->set_unsummed_records(verdict->unsummed_records);
  return Tell(*checkpoint, line, console);
}

}  // namespace fsdpd

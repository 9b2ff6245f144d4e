// Commands `ckpt inspect` and `ckpt verify`, and dispatch of the other ckpt commands. They read checkpoint
// directories on this machine, without a coordinator.
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/process/error_line.h"
#include "base/spec_text/located_violation.h"
#include "base/text.h"
#include "client/commands/ckpt_commands.h"
#include "client/commands/ckpt_report.h"
#include "client/commands/commands.h"
#include "client/connect/outcome.h"
#include "client/text/message_output.h"
#include "client/text/text_table.h"
#include "fsdp/checkpoint/dcp/dcp_sums.h"
#include "fsdp/checkpoint/format/directory_path.h"
#include "fsdp/checkpoint/hf/hf_store.h"
#include "fsdp/checkpoint/job/job_directory.h"
#include "proto/fsdpd/v1/checkpoint.pb.h"

namespace fsdpd {
namespace {

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

// Prints all defects, and a note about data without checksums, to stderr. Returns the exit code.
int ReportDefects(const std::string& directory, const v1::CheckpointReport& checkpoint, Console* console) {
  for (const v1::CheckpointError& fault : checkpoint.errors()) {
    console->err << absl::StrCat(directory, ": error: ", Escaped(fault.where()), ": ", Escaped(fault.error()),
                                 " [CHECKPOINT_CORRUPT]\n");
  }
  if (checkpoint.errors_omitted() > 0) {
    console->err << absl::StrCat(directory, ": error: and ", checkpoint.errors_omitted(), " more defects\n");
  }
  if (checkpoint.records_without_checksum() > 0) {
    console->err << absl::StrCat(directory, ": note: ", checkpoint.records_without_checksum(),
                                 checkpoint.records_without_checksum() == 1 ? " record has" : " records have",
                                 " no checksums; corrupt values in them cannot be detected\n");
  }
  const bool is_jobs =
      std::any_of(checkpoint.values().begin(), checkpoint.values().end(),
                  [](const v1::CheckpointValue& value) { return absl::StartsWith(value.name(), "fsdpd."); });
  if (checkpoint.verified() && is_jobs &&
      access(absl::StrCat(directory, "/", kDcpSumsName).c_str(), F_OK) != 0) {
    console->err << absl::StrCat(directory, ": note: ", kDcpSumsName,
                                 " is missing; corruption of .metadata cannot be detected\n");
  }
  return checkpoint.errors().empty() ? kExitOk : kExitDamaged;
}

int PrintReport(const v1::CheckpointReport& checkpoint, const CommandLine& line, Console* console) {
  const int code = ReportDefects(line.file, checkpoint, console);
  if (line.output != "table") {
    console->out << Rendered(checkpoint, line.output);
  } else if (line.action == "inspect") {
    console->out << ContentsText(checkpoint, console->width());
  } else if (checkpoint.errors().empty()) {
    console->out << Summary(checkpoint) << ": intact\n";
  }
  return code;
}

// The checkpoints in a directory, newest first; empty if the directory is itself a checkpoint or has none.
std::vector<FoundCheckpoint> CheckpointsIn(const std::string& directory) {
  if (IsCheckpoint(directory)) return {};
  const absl::StatusOr<std::vector<FoundCheckpoint>> found = ListCheckpoints(WithoutSlash(directory));
  const bool any = found.ok() && std::any_of(found->begin(), found->end(),
                                             [](const FoundCheckpoint& each) { return each.committed; });
  return any ? *found : std::vector<FoundCheckpoint>();
}

// Prints one line and the defects of each checkpoint, or one document each with -o json and yaml.
int VerifyEach(const std::vector<FoundCheckpoint>& found, const CommandLine& line, Console* console) {
  int code = kExitOk;
  for (const FoundCheckpoint& each : found) {
    if (!each.committed) {
      console->err << absl::StrCat(each.path, ": note: skipped, because it was not committed\n");
      continue;
    }
    const absl::StatusOr<v1::CheckpointReport> checkpoint =
        MakeReport(each.path, /*verify=*/true, [console] { return IsInterrupted(*console); });
    // A running job may have deleted it meanwhile (keep_last).
    if ((!checkpoint.ok() || !checkpoint->errors().empty()) && !IsCheckpoint(each.path)) {
      console->err << absl::StrCat(each.path, ": note: removed while it was read\n");
      continue;
    }
    if (!checkpoint.ok()) {
      const int failed = ReportCkptError(checkpoint.status(), console);
      if (failed != kExitDamaged) return failed;
      code = failed;
      if (line.output == "table") console->out << each.path << ": cannot be read\n";
      continue;
    }
    code = std::max(code, ReportDefects(each.path, *checkpoint, console));
    if (line.output != "table") {
      console->out << (line.output == "yaml" ? "---\n" : "") << Rendered(*checkpoint, line.output);
    } else {
      const int64_t violations = checkpoint->errors_size() + checkpoint->errors_omitted();
      console->out << absl::StrCat(each.path, ": ", Summary(*checkpoint), ": ",
                                   violations == 0   ? "intact"
                                   : violations == 1 ? "1 defect"
                                                     : absl::StrCat(violations, " defects"),
                                   "\n");
    }
  }
  return code;
}

// Whether the path looks like the name of a model on the Hugging Face Hub: "meta-llama/Llama-3.1-8B".
bool IsHubName(const std::string& path) {
  const std::vector<std::string> words = absl::StrSplit(path, '/');
  return words.size() == 2 && std::all_of(words.begin(), words.end(), [](const std::string& word) {
           return !word.empty() && absl::ascii_isalnum(word[0]) &&
                  std::all_of(word.begin(), word.end(), [](char c) {
                    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
                  });
         });
}

// Returns NOT_FOUND if the directory has no checkpoint. Other errors are left to the reader, which reports
// them.
absl::Status HasCheckpoint(const std::string& directory) {
  struct stat info;
  if (stat(absl::StrCat(directory, "/.metadata").c_str(), &info) == 0) return absl::OkStatus();
  if (errno == ENOTDIR) return absl::NotFoundError(absl::StrCat(directory, ": is not a directory"));
  if (errno != ENOENT) return absl::OkStatus();
  if (stat(directory.c_str(), &info) != 0)
    return absl::NotFoundError(absl::StrCat(directory, ": no such directory"));
  if (HasHfWeights(directory)) return absl::OkStatus();
  if (const std::string problem = PeftProblem(directory); !problem.empty())
    return absl::NotFoundError(absl::StrCat(directory, ": not a checkpoint: ", problem));
  return absl::NotFoundError(absl::StrCat(
      directory,
      ": not a checkpoint: it has neither .metadata, nor safetensors, nor iter_N directories with them"));
}

}  // namespace

int ReportCkptError(const absl::Status& status, Console* console) {
  if (absl::IsCancelled(status)) return kExitInterrupted;
  const bool corrupt = absl::IsDataLoss(status);
  console->err << "fsdpctl: "
               << WithErrorId(Escaped(std::string(status.message())),
                              corrupt ? "CHECKPOINT_CORRUPT" : "CHECKPOINT_ERROR")
               << "\n";
  return corrupt ? kExitDamaged : kExitUsage;
}

int ResolveCheckpoint(std::string* path, Console* console) {
  struct stat info;
  if (stat(path->c_str(), &info) != 0 && errno == ENOENT && IsHubName(*path)) {
    console->err << absl::StrCat(
        "fsdpctl: ", *path, ": no such directory; to download a model of the Hugging Face Hub, run ",
        "`hf download ", *path, " --local-dir ", DirectoryName(*path), "` [CHECKPOINT_ERROR]\n");
    return kExitUsage;
  }
  for (const FoundCheckpoint& each : CheckpointsIn(*path)) {
    if (!each.committed) continue;
    console->err << absl::StrCat(*path, ": note: directory of checkpoints; using the newest, ", each.path,
                                 "\n");
    *path = each.path;
    break;
  }
  return kExitOk;
}

bool IsInterrupted(const Console& console) {
  return console.interrupt != nullptr && console.interrupt->fired();
}

int RunCkptCommand(const CommandLine& given, Console* console) {
  CommandLine line = given;
  if (line.action == "verify") {
    const std::vector<FoundCheckpoint> found = CheckpointsIn(line.file);
    if (!found.empty()) return VerifyEach(found, line, console);
  }
  if (const int code = ResolveCheckpoint(&line.file, console); code != kExitOk) return code;
  if (line.action == "diff") {
    if (const int code = ResolveCheckpoint(&line.target, console); code != kExitOk) return code;
    return RunCkptDiff(line, console);
  }
  if (line.action == "convert") return RunCkptConvert(line, console);
  if (line.action == "merge") return RunCkptMerge(line, console);
  FSDPD_CHECK(line.action == "inspect" || line.action == "verify");
  if (const absl::Status has = HasCheckpoint(line.file); !has.ok()) return ReportCkptError(has, console);
  const absl::StatusOr<v1::CheckpointReport> checkpoint =
      MakeReport(line.file, line.action == "verify", [console] { return IsInterrupted(*console); });
  return checkpoint.ok() ? PrintReport(*checkpoint, line, console)
                         : ReportCkptError(checkpoint.status(), console);
}

}  // namespace fsdpd

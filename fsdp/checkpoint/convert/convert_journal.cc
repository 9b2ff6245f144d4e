#include "fsdp/checkpoint/convert/convert_journal.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "base/check.h"
#include "base/errno_status.h"
#include "base/json_quote.h"
#include "base/parallel_for.h"
#include "fsdp/checkpoint/dcp/dcp_index.h"
#include "fsdp/checkpoint/format/crc32.h"
#include "fsdp/checkpoint/format/durable_file.h"
#include "fsdp/checkpoint/format/json.h"
#include "fsdp/checkpoint/format/zip.h"
#include "fsdp/data/input_file.h"

namespace fsdpd {
namespace {

constexpr char kVersion[] = "1";
// Suffixes of the files in a checkpoint directory that a conversion reads.
constexpr absl::string_view kRead[] = {".distcp", ".metadata", ".safetensors", ".index.json", "common.pt"};

struct Journal {
  ConversionArguments arguments;
  std::vector<JournaledFile> files;
};

std::string TextOf(const ConversionArguments& arguments, const std::vector<JournaledFile>& files) {
  const auto argument = [](std::string* out, const std::pair<std::string, std::string>& one) {
    absl::StrAppend(out, "  ", JsonQuoted(one.first), ": ", JsonQuoted(one.second));
  };
  const auto file = [](std::string* out, const JournaledFile& one) {
    absl::StrAppend(out, "  {\"name\": ", JsonQuoted(one.file.name), ", \"bytes\": ", one.file.bytes,
                    ", \"crc32\": ", one.file.crc32, ", \"overflowed\": ", one.overflowed, "}");
  };
  return absl::StrCat("{\"version\": ", kVersion, ", \"begun\": {\n",
                      absl::StrJoin(arguments, ",\n", argument), "\n}, \"files\": [\n",
                      absl::StrJoin(files, ",\n", file), "\n]}\n");
}

bool ReadCount(const JsonValue& of, const char* key, int64_t* count) {
  const JsonValue* value = of.Find(key);
  return value != nullptr && value->kind == JsonValue::Kind::kNumber &&
         absl::SimpleAtoi(value->text, count) && *count >= 0;
}

// Nullopt if it is not a journal written by this build.
std::optional<Journal> Parse(absl::string_view text) {
  const absl::StatusOr<JsonValue> root = ParseJson(text);
  if (!root.ok()) return std::nullopt;
  const JsonValue* version = root->Find("version");
  const JsonValue* begun = root->Find("begun");
  const JsonValue* files = root->Find("files");
  if (version == nullptr || version->text != kVersion || begun == nullptr || files == nullptr) return {};
  Journal journal;
  for (size_t i = 0; i < begun->keys.size(); ++i)
    journal.arguments.emplace_back(begun->keys[i], begun->items[i].text);
  for (const JsonValue& item : files->items) {
    const JsonValue* name = item.Find("name");
    JournaledFile one;
    int64_t crc32 = 0;
    if (name == nullptr || !IsPlainFileName(name->text) || !ReadCount(item, "bytes", &one.file.bytes) ||
        !ReadCount(item, "crc32", &crc32) || crc32 > UINT32_MAX ||
        !ReadCount(item, "overflowed", &one.overflowed)) {
      return std::nullopt;
    }
    one.file.name = name->text;
    one.file.crc32 = static_cast<uint32_t>(crc32);
    journal.files.push_back(std::move(one));
  }
  return journal;
}

// Nullopt if there is none. A corrupt journal counts as none: the files next to it cannot be trusted.
absl::StatusOr<std::optional<Journal>> Read(const std::string& directory) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(absl::StrCat(directory, "/", kJournalName));
  if (absl::IsNotFound(file.status())) return std::nullopt;
  if (!file.ok()) return file.status();
  if ((*file)->size() > JsonLimits().bytes) return std::nullopt;
  FSDPD_ASSIGN_OR_RETURN(const std::string text, (*file)->ReadAll());
  return Parse(text);
}

absl::Status CheckSame(const std::string& directory, const ConversionArguments& begun,
                       const ConversionArguments& now) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : now) {
    const auto found =
        std::find_if(begun.begin(), begun.end(), [&key = name](const auto& one) { return one.first == key; });
    const std::string before = found == begun.end() ? "" : found->second;
    if (before != value) differences.push_back(absl::StrCat(name, " was ", before, ", now is ", value));
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      directory, ": has an unfinished conversion with other arguments: ", absl::StrJoin(differences, "; "),
      "; rerun it with the same arguments, use another TARGET, or start over with --overwrite"));
}

absl::StatusOr<bool> IsComplete(const std::string& directory, const CompleteFile& whole) {
  const absl::StatusOr<std::unique_ptr<InputFile>> file =
      InputFile::Open(absl::StrCat(directory, "/", whole.name));
  if (absl::IsNotFound(file.status())) return false;
  if (!file.ok()) return file.status();
  if ((*file)->size() != whole.bytes) return false;
  FSDPD_ASSIGN_OR_RETURN(const uint32_t crc32, Crc32Of((*file)->Reader(), 0, whole.bytes));
  return crc32 == whole.crc32;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConversionJournal>> ConversionJournal::Open(
    PartDirectory* directory, ConversionArguments arguments, bool anew, int threads,
    const std::function<bool()>& stopped) {
  std::unique_ptr<ConversionJournal> journal(new ConversionJournal(directory, std::move(arguments)));
  FSDPD_ASSIGN_OR_RETURN(const std::optional<Journal> left, Read(directory->path()));
  std::set<std::string> names;
  if (left.has_value() && !anew) {
    FSDPD_RETURN_IF_ERROR(CheckSame(directory->path(), left->arguments, journal->arguments_));
    // char rather than vector<bool>, whose bits cannot be written by different threads.
    std::vector<char> whole(left->files.size());
    FSDPD_RETURN_IF_ERROR(ParallelFor(whole.size(), threads, stopped, [&](size_t i) -> absl::Status {
      FSDPD_ASSIGN_OR_RETURN(whole[i], IsComplete(directory->path(), left->files[i].file));
      return absl::OkStatus();
    }));
    for (size_t i = 0; i < whole.size(); ++i) {
      if (whole[i] == 0) continue;
      journal->found_.push_back(left->files[i]);
      names.insert(left->files[i].file.name);
    }
  }
  if (!names.empty()) names.insert(kJournalName);
  FSDPD_RETURN_IF_ERROR(directory->KeepOnly(std::move(names)));
  {
    MutexLock lock(&journal->mutex_);
    journal->files_ = journal->found_;
  }
  return journal;
}

absl::Status ConversionJournal::Add(const JournaledFile& file) {
  {
    MutexLock lock(&mutex_);
    files_.push_back(file);
    if (writing_) return absl::OkStatus();  // The writing thread notices the addition.
    writing_ = true;
  }
  std::vector<JournaledFile> written;
  while (true) {
    {
      MutexLock lock(&mutex_);
      for (const JournaledFile& one : written) directory_.Keep(one.file.name);
      if (!written.empty()) directory_.Keep(kJournalName);
      writing_ = written.size() < files_.size();
      if (!writing_) return absl::OkStatus();
      written = files_;
    }
    // Make the file's name durable first: the journal must not list a file that a crash removes.
    absl::Status status = SyncDirectory(directory_.path());
    if (status.ok()) status = ReplaceFile(directory_.path(), kJournalName, TextOf(arguments_, written));
    if (status.ok()) continue;
    MutexLock lock(&mutex_);
    writing_ = false;
    return status;
  }
}

absl::Status ConversionJournal::Remove() {
  return RemoveFile(absl::StrCat(directory_.path(), "/", kJournalName));
}

absl::StatusOr<std::string> FilesText(const std::string& directory) {
  std::vector<std::string> lines;
  int64_t bytes = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(directory, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_read = std::any_of(std::begin(kRead), std::end(kRead),
                                     [&name](absl::string_view end) { return absl::EndsWith(name, end); });
    if (!is_read) continue;
    struct stat info;
    if (stat(entry->path().c_str(), &info) != 0)
      return ErrnoStatus(absl::StrCat("stat ", entry->path().string()));
    // Copies with preserved times (cp -p, rsync -t) keep mtime, but the kernel always sets ctime.
    lines.push_back(absl::StrCat(name, " ", info.st_size, " ", info.st_mtim.tv_sec, ".", info.st_mtim.tv_nsec,
                                 " ", info.st_ctim.tv_sec, ".", info.st_ctim.tv_nsec));
    bytes += info.st_size;
  }
  if (error) return ErrnoStatus(absl::StrCat("list ", directory), error.value());
  std::sort(lines.begin(), lines.end());
  const std::string all = absl::StrJoin(lines, "\n");
  return absl::StrFormat("%d files of %d bytes (%08x)", lines.size(), bytes,
                         Crc32(all.data(), static_cast<int64_t>(all.size())));
}

}  // namespace fsdpd

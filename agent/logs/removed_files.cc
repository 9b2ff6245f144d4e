#include "agent/logs/removed_files.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <fstream>

#include "base/log.h"
#include "base/process/text_files.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

// 50,000 files of one job. Beyond it the oldest half of the record is dropped.
constexpr uintmax_t kMaxRecordBytes = 1 << 20;

// By a rename: a reader sees the old record or the new one.
void DropOldestHalf(const fs::path& record) {
  const std::string text = ReadText(record);
  const size_t line_end = text.find('\n', text.size() / 2);
  const fs::path rewritten = record.string() + ".rewritten";
  std::ofstream out(rewritten, std::ios::trunc);
  if (line_end != std::string::npos) out << text.substr(line_end + 1);
  std::error_code error;
  if (out.flush()) fs::rename(rewritten, record, error);
  if (!out || error) LogWarning("record of removed logs was not shortened file=%s", record.string());
}

}  // namespace

std::vector<std::string> RankFilesOf(const fs::path& job, int attempt) {
  const std::string directory = absl::StrCat("attempt-", attempt);
  std::vector<std::string> files;
  for (const fs::directory_entry& file : EntriesIn(job / directory)) {
    const std::string name = file.path().filename().string();
    if (absl::StartsWith(name, "rank-")) files.push_back(absl::StrCat(directory, "/", name));
  }
  return files;
}

void RecordRemoval(const fs::path& job, const std::vector<std::string>& rank_files) {
  const fs::path record = job / kRemovedFiles;
  if (rank_files.empty()) return;
  std::error_code none;
  const uintmax_t size = fs::file_size(record, none);
  if (!none && size > kMaxRecordBytes) DropOldestHalf(record);
  std::ofstream out(record, std::ios::app);
  for (const std::string& file : rank_files) out << file << "\n";
  if (!out.flush()) LogWarning("the removal of logs could not be recorded file=%s", record.string());
}

std::set<int> RanksRemoved(const std::string& work_dir, const AttemptId& id, absl::string_view suffix) {
  const std::string prefix = absl::StrCat("attempt-", id.attempt, "/rank-");
  std::set<int> ranks;
  std::ifstream record(fs::path(work_dir) / id.job_id / kRemovedFiles);
  for (std::string line; std::getline(record, line);) {
    absl::string_view rest = line;
    int rank = 0;
    if (absl::ConsumePrefix(&rest, prefix) && absl::ConsumeSuffix(&rest, suffix) &&
        absl::SimpleAtoi(rest, &rank)) {
      ranks.insert(rank);
    }
  }
  return ranks;
}

std::string RemovalNotice(absl::string_view what, const RankId& id) {
  return absl::StrCat("[fsdpd-agent: the ", what, " of rank ", id.rank, " of attempt ", id.of.attempt,
                      " was removed: files of jobs on this node exceeded --work-mib]");
}

}  // namespace fsdpd

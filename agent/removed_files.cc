#include "agent/removed_files.h"

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include <fstream>

#include "base/log.h"

namespace fsdpd {
namespace {

namespace fs = std::filesystem;

// Some 50,000 files of one job.
constexpr uintmax_t kMaxRecordBytes = 1 << 20;

}  // namespace

std::vector<std::string> RankFilesOf(const fs::path& job, int attempt) {
  const std::string directory = absl::StrCat("attempt-", attempt);
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator file(job / directory, error), end; !error && file != end;
       file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (absl::StartsWith(name, "rank-")) files.push_back(absl::StrCat(directory, "/", name));
  }
  return files;
}

void RecordRemoval(const fs::path& job, const std::vector<std::string>& rank_files) {
  const fs::path record = job / kRemovedFiles;
  std::error_code none;
  const uintmax_t size = fs::file_size(record, none);
  if (rank_files.empty() || (!none && size > kMaxRecordBytes)) return;
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

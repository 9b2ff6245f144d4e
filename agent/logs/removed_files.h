// Record of the logs and hang evidence that an agent removed to stay within --work-mib (job_directories.h),
// in WORK_DIR/JOB/removed: a reader of one gets a notice instead of nothing. One line per file, as in
// "attempt-1/rank-0.log". It is removed with the job's directory.
//
// Thread safety: one writer (the thread of JobDirectories); readers at any time.
#pragma once

#include <absl/strings/string_view.h>

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "agent/launch/attempt.h"

namespace fsdpd {

constexpr char kRemovedFiles[] = "removed";

// "attempt-1/rank-0.log" of each file of a rank in the attempt's directory.
std::vector<std::string> RankFilesOf(const std::filesystem::path& job, int attempt);

// REQUIRES: the files are removed, which frees the space that the record needs on a full disk. A record over
// 1 MiB loses its oldest half first. A record that cannot be written is logged.
void RecordRemoval(const std::filesystem::path& job, const std::vector<std::string>& rank_files);

// Ranks of the attempt whose file rank-R`suffix` was removed.
std::set<int> RanksRemoved(const std::string& work_dir, const AttemptId& id, absl::string_view suffix);

// Replaces the file. `what`: "log" or "hang evidence".
std::string RemovalNotice(absl::string_view what, const RankId& id);

}  // namespace fsdpd

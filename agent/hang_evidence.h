// A file beside a rank's log that keeps what can be seen of a rank that stands still: PathOf() of its log,
// with kEvidenceSuffix in the place of ".log". The newest stillness of an attempt has it.
//
// What a process shows may not be read in time (thread_stacks.h), so a thread of its own writes the file, and
// it has copies alone, and ends with the process at the latest. There are few at once; beyond them nothing is
// written. Who promises the file to others asks first whether it is there: a disk may be full.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

namespace fsdpd {

constexpr char kEvidenceSuffix[] = ".hang.txt";
std::string EvidencePath(const std::string& log_path);

enum class EvidenceState { kBegun, kWritten, kFailed };
using Evidence = std::shared_ptr<const std::atomic<EvidenceState>>;

// Begins to write `text`, and what the threads of `pid` show. Null when too many are under way, as they are
// where many ranks cannot be read.
Evidence WriteEvidence(const std::string& path, pid_t pid, const std::string& text);

}  // namespace fsdpd

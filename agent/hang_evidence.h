// A file beside a rank's log that keeps what can be seen of a rank that stands still: PathOf() of its log,
// with kEvidenceSuffix in the place of ".log". The newest stillness of an attempt has it.
//
// What a process shows may not be read in time (thread_stacks.h), so a thread of its own writes the file, and
// nobody waits for it: it has copies alone, and ends with the process at the latest. There are few at once;
// beyond them nothing is written.
#pragma once

#include <sys/types.h>

#include <string>

namespace fsdpd {

constexpr char kEvidenceSuffix[] = ".hang.txt";
std::string EvidencePath(const std::string& log_path);

// Begins to write `text`, and what the threads of `pid` show. False when too many are under way, as they do
// where many ranks cannot be read.
bool WriteEvidence(const std::string& path, pid_t pid, const std::string& text);

}  // namespace fsdpd

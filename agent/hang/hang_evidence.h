// Evidence of a hang: a file next to the log of a rank with what can be observed of it while it makes no
// progress. Its path is that of the log with kEvidenceSuffix instead of ".log". A later hang of the same
// attempt overwrites it.
//
// Reading /proc may block (thread_stacks.h), so a detached thread writes the file; it uses copies only and
// ends with the process at the latest. The number of these threads is bounded; beyond it no evidence is
// written. Check that the file exists before referring to it: the disk may be full.
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

// Starts to write `text` and the stacks of the threads of `pid`. Null if too many writers are active, which
// happens when many processes cannot be read.
Evidence WriteEvidence(const std::string& path, pid_t pid, const std::string& text);

}  // namespace fsdpd

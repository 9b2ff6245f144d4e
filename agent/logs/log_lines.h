// Conversion of rank logs to lines that fit a message and are valid UTF-8. It owns how a reader sees a line
// that is too long (its beginning and the number of omitted bytes) or not text (U+FFFD for each invalid
// byte), where "the last N lines" of a file begin, and the format of notices of the agent in a log.
//
// Not thread-safe.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

std::string ValidUtf8(absl::string_view bytes);

// Splits a byte stream into lines without their line ends.
class LineSplitter {
 public:
  void Append(absl::string_view bytes, std::vector<std::string>* lines);
  void Finish(std::vector<std::string>* lines);  // Emits the incomplete last line.

 private:
  void AppendToLine(absl::string_view bytes);
  std::string TakeLine();

  std::string line_;       // At most kMaxLogLineBytes.
  int64_t cut_bytes_ = 0;  // Omitted bytes of the current line.
  bool started_ = false;   // The current line is not empty.
};

// Offset at which the last `lines` lines of the file `fd` of `size` bytes begin. Reads at most the last
// `max_bytes`.
int64_t TailOffset(int fd, int64_t size, int lines, int64_t max_bytes);

// Appends "[fsdpd-agent: words]" on its own line, also if the last line of the rank is incomplete.
absl::Status AppendNotice(const std::string& path, absl::string_view words);

}  // namespace fsdpd

// Text of rank logs: bytes become lines that fit a message and are valid UTF-8. It owns what a reader sees of
// a line that is too long (its beginning and a mark with the count of cut bytes) or that is no text (U+FFFD
// for each invalid byte), where "the last N lines" of a file begin, and how the agent's own words stand among
// a rank's.
//
// Thread safety: none.
#pragma once

#include <absl/status/status.h>
#include <absl/strings/string_view.h>
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

namespace fsdpd {

std::string ValidUtf8(absl::string_view bytes);

// Feed bytes as they arrive; whole lines come out, without their line end.
class LineSplitter {
 public:
  void Append(absl::string_view bytes, std::vector<std::string>* lines);
  void Finish(std::vector<std::string>* lines);  // What is left is a line too.

 private:
  void AppendToLine(absl::string_view bytes);
  std::string TakeLine();

  std::string line_;       // At most kMaxLogLineBytes.
  int64_t cut_bytes_ = 0;  // Of the present line.
  bool started_ = false;   // The present line has bytes.
};

// Offset in the open file `fd` of `size` bytes at which its last `lines` lines begin, looking at no more than
// the last `max_bytes` of it.
int64_t TailOffset(int fd, int64_t size, int lines, int64_t max_bytes);

// "[fsdpd-agent: words]", on a line of its own also where the rank's last one is torn.
absl::Status AppendNotice(const std::string& path, absl::string_view words);

}  // namespace fsdpd

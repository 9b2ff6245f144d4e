// Display of a child's progress messages ("measuring 3/9: attention in fp32", written by
// fsdp/profile/profile_command.h). On a terminal they are one line that is redrawn, and cleared at the end.
// Otherwise they are copied to stderr.
//
// Take() any number of times, then End(). Not thread-safe.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "client/text/console.h"

namespace fsdpd {

class StageScreen {
 public:
  explicit StageScreen(Console* console) : console_(*console) {}  // `console` must outlive the screen.

  void Take(absl::string_view chunk);  // A chunk of the child's stderr, split anywhere.
  void End();

 private:
  void TakeLine(const std::string& line);
  void Clear();

  Console& console_;
  std::string rest_;  // The incomplete last line.
  bool live_ = false;
};

}  // namespace fsdpd

// What a program of ours says on stderr while it works through stages ("measuring 3/9: attention in fp32", as
// fsdp/profile/profile_command.h writes it): as it comes, or where stderr is a terminal as one line that is
// drawn over itself and gone at the end.
//
// Take() any number of times, then End(). Not thread-safe.
#pragma once

#include <absl/strings/string_view.h>

#include <string>

#include "client/console.h"

namespace fsdpd {

class StageScreen {
 public:
  explicit StageScreen(Console* console) : console_(*console) {}  // It must outlive the screen.

  void Take(absl::string_view words);  // Of any length, cut anywhere.
  void End();

 private:
  void TakeLine(const std::string& line);
  void Clear();

  Console& console_;
  std::string rest_;  // Of a line that has not ended.
  bool live_ = false;
};

}  // namespace fsdpd

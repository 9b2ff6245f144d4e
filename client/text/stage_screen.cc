#include "client/text/stage_screen.h"

#include <regex>

#include "client/text/progress_line.h"

namespace fsdpd {

void StageScreen::Take(absl::string_view chunk) {
  if (!console_.err_terminal) {
    console_.err << chunk << std::flush;
    return;
  }
  rest_.append(chunk.data(), chunk.size());
  for (size_t end = rest_.find('\n'); end != std::string::npos; end = rest_.find('\n')) {
    TakeLine(rest_.substr(0, end));
    rest_.erase(0, end + 1);
  }
}

void StageScreen::End() {
  Clear();
  console_.err << rest_ << std::flush;
  rest_.clear();
}

void StageScreen::TakeLine(const std::string& line) {
  static const std::regex stage("measuring ([0-9]{1,4})/([0-9]{1,4}): (.*)");
  Clear();
  std::smatch found;
  if (!std::regex_match(line, found, stage)) {
    console_.err << line << "\n" << std::flush;
    return;
  }
  console_.err << StageBar(std::stoi(found[1]), std::stoi(found[2]), found[3], console_.err_width())
               << std::flush;
  live_ = true;
}

void StageScreen::Clear() {
  if (live_) console_.err << "\r\x1b[2K";
  live_ = false;
}

}  // namespace fsdpd

#include "client/text/stage_screen.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fsdpd {
namespace {

std::string Shown(bool terminal, const std::vector<std::string>& pieces) {
  std::istringstream in;
  std::ostringstream out, err;
  Console console{in, out, err};
  console.err_terminal = terminal;
  console.err_width = [] { return 40; };
  StageScreen screen(&console);
  for (const std::string& piece : pieces) screen.Take(piece);
  screen.End();
  EXPECT_EQ(out.str(), "");
  return err.str();
}

TEST(StageScreen, CopiesLinesWithoutTerminal) {
  EXPECT_EQ(Shown(false, {"measuring 1/2: a\nmeas", "uring 2/2: b\nnote: c\n"}),
            "measuring 1/2: a\nmeasuring 2/2: b\nnote: c\n");
}

TEST(StageScreen, RedrawsAndClearsLineOnTerminal) {
  EXPECT_EQ(Shown(true, {"measuring 1/2: a\nmeas", "uring 2/2: b\nnote: c\n"}),
            "[          ] 1/2  a\r\x1b[2K[====>     ] 2/2  b\r\x1b[2Knote: c\n");
  EXPECT_EQ(Shown(true, {"measuring 1/2: a\n"}), "[          ] 1/2  a\r\x1b[2K");
  EXPECT_EQ(Shown(true, {"cut off"}), "cut off");
}

}  // namespace
}  // namespace fsdpd

#include "agent/hang/hang_evidence.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <thread>

#include "base/temp_dir.h"

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(HangEvidence, PathIsNextToTheLog) {
  EXPECT_EQ(EvidencePath("/var/lib/fsdpd/job/attempt-1/rank-3.log"),
            "/var/lib/fsdpd/job/attempt-1/rank-3.hang.txt");
}

TEST(HangEvidence, IsWrittenAtomicallyOnItsOwnThread) {
  const TempDir dir;
  const std::string path = dir.path() + "/rank-3.hang.txt";
  const Evidence evidence = WriteEvidence(path, getpid(), "nothing has moved\n");
  ASSERT_NE(evidence, nullptr);
  while (*evidence == EvidenceState::kBegun) std::this_thread::yield();
  ASSERT_EQ(*evidence, EvidenceState::kWritten);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_THAT(text.str(), AllOf(HasSubstr("nothing has moved\nprocess "),
                                HasSubstr(absl::StrCat("thread ", getpid(), " hang_evidence_"))));
}

TEST(HangEvidence, ReportsWriteFailure) {
  const Evidence evidence = WriteEvidence("/dev/full/rank-3.hang.txt", getpid(), "nothing has moved\n");
  ASSERT_NE(evidence, nullptr);
  while (*evidence == EvidenceState::kBegun) std::this_thread::yield();
  EXPECT_EQ(*evidence, EvidenceState::kFailed);
}

}  // namespace
}  // namespace fsdpd

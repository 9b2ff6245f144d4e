#include "client/commands/child_process.h"

#include <gtest/gtest.h>

#include <sstream>

namespace fsdpd {
namespace {

absl::StatusOr<ChildResult> Shell(const std::string& script, std::ostream* err,
                                  Interrupt* interrupt = nullptr) {
  return RunChild({"/bin/sh", "-c", script}, interrupt, [err](absl::string_view words) { *err << words; });
}

TEST(ChildProcess, ReturnsStdoutAndForwardsStderr) {
  std::ostringstream err;
  const auto result = Shell("cat; echo data; echo words >&2; exit 7", &err);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->output, "data\n");
  EXPECT_EQ(result->exit_code, 7);
  EXPECT_EQ(err.str(), "words\n");
}

TEST(ChildProcess, HandlesOutputLargerThanPipeBuffer) {
  std::ostringstream err;
  const auto result = Shell("head -c 300000 /dev/zero >&2; head -c 300000 /dev/zero", &err);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->output.size(), 300000u);
  EXPECT_EQ(err.str().size(), 300000u);
}

TEST(ChildProcess, ReportsSignal) {
  std::ostringstream err;
  const auto result = Shell("kill -TERM $$", &err);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->exit_code, -15);
}

TEST(ChildProcess, ReturnsNotFoundForMissingProgram) {
  const auto result = RunChild({"/no/such/program"}, nullptr, [](absl::string_view) {});
  EXPECT_EQ(result.status(), absl::NotFoundError("/no/such/program: No such file or directory"));
}

TEST(ChildProcess, InterruptCancels) {
  std::ostringstream err;
  Interrupt interrupt;
  interrupt.Fire();
  EXPECT_TRUE(absl::IsCancelled(Shell("exec sleep 1000", &err, &interrupt).status()));
}

}  // namespace
}  // namespace fsdpd

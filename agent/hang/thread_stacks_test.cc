#include "agent/hang/thread_stacks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <iterator>
#include <string>

namespace fsdpd {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A child that was stopped by a signal while it waited for one.
class StoppedChild {
 public:
  StoppedChild() : pid_(fork()) {
    if (pid_ == 0) {
      raise(SIGSTOP);
      _exit(0);
    }
    int status = 0;
    waitpid(pid_, &status, WUNTRACED);
    EXPECT_TRUE(WIFSTOPPED(status));
  }
  ~StoppedChild() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

TEST(ThreadStacks, ShowsThreadsOfAStoppedProcess) {
  const StoppedChild child;
  const std::string text = ThreadsText(child.pid());
  // One thread, plus those of a sanitizer runtime.
  const std::filesystem::directory_iterator tasks("/proc/" + std::to_string(child.pid()) + "/task");
  const auto threads = std::distance(begin(tasks), end(tasks));
  ASSERT_GE(threads, 1);
  EXPECT_THAT(text, HasSubstr(", " + std::to_string(threads) + " threads\n"));
  EXPECT_THAT(text, ContainsRegex("thread [0-9]+ thread_stacks_.* state=T wchan="));
  // If ptrace access is allowed, which is the default for a parent.
  if (text.find("  at ") == std::string::npos) GTEST_SKIP() << "the kernel shows no more:\n" << text;
  EXPECT_THAT(text, AllOf(ContainsRegex("  at [^ ]+\\+0x[0-9a-f]+\n"),
                          ContainsRegex("  calls [^ ]*thread_stacks_test\\+0x[0-9a-f]+\n")));
}

TEST(ThreadStacks, ReportsAnExitedProcess) {
  pid_t pid = 0;
  {
    const StoppedChild child;
    pid = child.pid();
  }
  EXPECT_EQ(ThreadsText(pid), "process " + std::to_string(pid) + " is gone\n");
}

}  // namespace
}  // namespace fsdpd

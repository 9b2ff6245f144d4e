#include "base/process/uncaught.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <new>
#include <stdexcept>
#include <thread>

namespace fsdpd {
namespace {

TEST(Uncaught, ExitsWith1FromAnyThread) {
  const auto end = [] {
    EndOnUncaught([](const std::exception& error) { std::fprintf(stderr, "told: %s\n", error.what()); });
    std::thread([] { throw std::runtime_error("of a thread"); }).join();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1), "told: of a thread");
}

TEST(Uncaught, ExitsWithTheGivenCode) {
  const auto end = []() noexcept {
    EndOnUncaught([](const std::exception& error) { std::fputs(UncaughtText(error).c_str(), stderr); }, 7);
    throw std::runtime_error("first");
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(7), "unexpected error: first");
}

TEST(Uncaught, LogsShortagesWithLimits) {
  const auto end = []() noexcept {
    LogUncaught();
    throw std::bad_alloc();
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(1), "exiting: out of host memory");
}

TEST(Uncaught, AbortsIfReportingFails) {
  const auto throws = []() noexcept {
    EndOnUncaught([](const std::exception&) { throw std::bad_alloc(); });
    throw std::runtime_error("first");
  };
  EXPECT_EXIT(throws(), testing::KilledBySignal(SIGABRT), "terminate called .*bad_alloc");
  const auto stands = []() noexcept {
    EndOnUncaught([](const std::exception&) { std::this_thread::sleep_for(std::chrono::hours(1)); });
    throw std::runtime_error("first");
  };
  EXPECT_EXIT(stands(), testing::KilledBySignal(SIGABRT), "could not be reported");
  const auto of_no_kind = []() noexcept {
    LogUncaught();
    throw 7;
  };
  EXPECT_EXIT(of_no_kind(), testing::KilledBySignal(SIGABRT), "terminate called .*'int'");
}

}  // namespace
}  // namespace fsdpd

#include "client/text/interrupt.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdpd {
namespace {

TEST(Interrupt, EndsWait) {
  Interrupt interrupt;
  EXPECT_FALSE(interrupt.WaitFor(std::chrono::milliseconds(1)));
  std::thread waiter([&] { EXPECT_TRUE(interrupt.WaitFor(std::chrono::hours(1))); });
  interrupt.Fire();
  waiter.join();
  EXPECT_TRUE(interrupt.fired());
}

TEST(Interrupt, RunsActionOnceWithinScope) {
  Interrupt interrupt;
  int runs = 0;
  {
    Interrupt::Scope gone(&interrupt, [&] { runs += 100; });
  }
  Interrupt::Scope scope(&interrupt, [&] { ++runs; });
  interrupt.Fire();
  interrupt.Fire();
  EXPECT_EQ(runs, 1);
}

TEST(Interrupt, RunsActionIfAlreadyFired) {
  Interrupt interrupt;
  interrupt.Fire();
  int runs = 0;
  Interrupt::Scope scope(&interrupt, [&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace fsdpd

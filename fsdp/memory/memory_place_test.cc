#include "fsdp/memory/memory_place.h"

#include <gtest/gtest.h>

#include <thread>

namespace fsdpd {
namespace {

MemoryPlace OfAnotherThread(MemoryPlace (*place)()) {
  MemoryPlace there;
  std::thread([&] { there = place(); }).join();
  return there;
}

TEST(MemoryPlace, ScopeSetsThePlaceOfItsThread) {
  const MemoryPlaceScope outer(MemoryPlace{3, 1});
  {
    const MemoryPlaceScope inner(MemoryPlace{3, 2});
    EXPECT_TRUE(CurrentMemoryPlace() == (MemoryPlace{3, 2}));
  }
  EXPECT_TRUE(CurrentMemoryPlace() == (MemoryPlace{3, 1}));
  EXPECT_TRUE(OfAnotherThread(&CurrentMemoryPlace) == MemoryPlace());
  EXPECT_TRUE(OfAnotherThread(&MemoryPlaceWithOthers) == MemoryPlace()) << "its scope is its own";
}

// Regression: allocations on autograd's thread had no place.
TEST(MemoryPlace, ThreadWithoutAPlaceUsesTheSharedOne) {
  {
    const MemoryPlaceScope computing(MemoryPlace{3, 1}, /*with_others=*/true);
    const MemoryPlaceScope here(MemoryPlace{3, 2});
    EXPECT_TRUE(OfAnotherThread(&MemoryPlaceWithOthers) == (MemoryPlace{3, 1}));
    EXPECT_TRUE(OfAnotherThread(&CurrentMemoryPlace) == MemoryPlace());
    EXPECT_TRUE(MemoryPlaceWithOthers() == (MemoryPlace{3, 2})) << "it has its own";
  }
  EXPECT_TRUE(OfAnotherThread(&MemoryPlaceWithOthers) == MemoryPlace()) << "until it ends";
}

}  // namespace
}  // namespace fsdpd
